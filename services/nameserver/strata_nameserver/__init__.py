"""The metadata tier: topics, consumer groups, nodes, raft groups, slots, and a watch of them."""
