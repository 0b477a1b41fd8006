"""The storage node: raft groups of queues over one CommitLog and one row store.

Read in this order: `engine` (one raft group), `machine` (apply), `leader` (what a leader knows
beyond the rows), `append`, `pop`, `lease_calls`, `dead_letters` (what a leader decides), `reader`
and `consume_queues` (reads), `node` (many raft groups and their background work), `servicer`
(protobuf), `app` (the object graph).
"""
