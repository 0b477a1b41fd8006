"""Requests of operators' tools in the remoting protocol, as unmodified `mqadmin` sends them."""
