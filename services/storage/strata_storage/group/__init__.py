"""One raft group on this node: its engine, its plugins, its answers as messages."""
