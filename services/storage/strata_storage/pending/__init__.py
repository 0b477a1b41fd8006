"""Messages that wait for a time or for a decision: delayed ones and halves (rules 26, 27)."""
