"""Decisions of a leader about messages that wait: delays, transactions, recalls."""
