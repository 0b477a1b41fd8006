"""The work of the metadata leader: decides, proposes, judges nodes, explains."""
