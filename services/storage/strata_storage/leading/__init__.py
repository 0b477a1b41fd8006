"""What a leader keeps in memory for one term, and decides from it."""
