"""Tiering: what of a raft group's messages is in an object store, how it gets there and is read."""
