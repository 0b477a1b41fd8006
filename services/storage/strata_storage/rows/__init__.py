"""The state machine and the rows that it writes when an entry is applied."""
