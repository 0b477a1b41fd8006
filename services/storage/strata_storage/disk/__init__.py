"""What leaves the disk, what a full disk forbids, what damage means (rules 8, 10, 11)."""
