"""Drafts of one change each: topics, consumer groups, nodes, raft groups, moves."""
