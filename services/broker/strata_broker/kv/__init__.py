"""The plugin `kv` of a broker: `strata.kv.v1` for clients, and messages that are writes."""
