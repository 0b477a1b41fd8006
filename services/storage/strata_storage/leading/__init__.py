"""State that a leader keeps in memory for one term, and its decisions from that state."""
