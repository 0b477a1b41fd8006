"""Tiered storage: object stores, stream-set objects, manifests, uploads, cached reads."""
