"""Calls to storage nodes: leaders, lanes of appends and acks, replica reads."""
