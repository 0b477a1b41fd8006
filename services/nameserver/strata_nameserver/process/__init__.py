"""A nameserver as a process: its object graph, its quorum, its health."""
