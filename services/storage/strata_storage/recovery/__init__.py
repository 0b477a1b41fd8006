"""Rows and logs made whole again: checkpoints, rebuild, snapshots, repair (rules 6, 8, 10)."""
