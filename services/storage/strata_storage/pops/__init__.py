"""Leases: taken, watched, ended, given up (rules 20 to 25)."""
