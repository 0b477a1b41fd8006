"""Operators' requests to a broker, about itself or about the cluster."""
