"""Members of the metadata raft group, and their addresses."""
