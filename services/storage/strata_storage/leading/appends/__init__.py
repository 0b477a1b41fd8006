"""Decisions of a leader about appends: duplicates, offsets, what is in flight."""
