"""Reads of what is applied: messages, offsets, lookups, traces."""
