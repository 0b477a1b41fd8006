"""Translation between the wire and a storage node's own objects; no decisions."""
