"""Queues and slots change their raft group without a byte copied (rules 17, 18)."""
