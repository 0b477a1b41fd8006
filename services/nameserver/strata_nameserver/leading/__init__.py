"""What the metadata leader does: decides, proposes, judges nodes, explains."""
