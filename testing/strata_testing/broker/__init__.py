"""A broker under test, and the cluster and the edge that are its world."""
