"""Decisions of a leader about pops: candidates, leases, waiters, dead letters."""
