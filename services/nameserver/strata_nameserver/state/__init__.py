"""The metadata: state machine, speculative state of the leader, snapshots."""
