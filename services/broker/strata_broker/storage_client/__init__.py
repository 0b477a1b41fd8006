"""Calls to storage nodes: who leads, lanes of appends and acks, replica reads."""
