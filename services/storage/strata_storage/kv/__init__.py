"""The plugin `kv` of a storage node: key-value tables (RIP-22) in its raft groups."""
