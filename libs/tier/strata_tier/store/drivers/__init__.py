"""Adapters of the `ObjectStore` port, one module each."""
