"""Lite topics of a storage node: names below a parent topic, each a queue with its own number."""
