"""The RPC between tiers."""
