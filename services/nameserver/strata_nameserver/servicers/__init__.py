"""Translation between protos and the metadata service; no logic."""
