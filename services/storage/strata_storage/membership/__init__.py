"""Which replicas are here, who else there is, and how the node joins and leaves."""
