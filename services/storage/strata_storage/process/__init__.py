"""A storage node as a process: its object graph, its loops, its place in a cluster."""
