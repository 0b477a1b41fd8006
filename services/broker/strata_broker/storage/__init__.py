"""The storage tier and the metadata, as one broker sees them."""
