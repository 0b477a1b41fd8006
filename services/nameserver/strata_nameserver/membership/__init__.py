"""Who takes part in the metadata raft group, and where they are."""
