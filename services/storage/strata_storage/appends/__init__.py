"""What becomes of an append batch: decided by the leader, applied by every replica."""
