"""What operators ask of a broker, for itself or for the cluster."""
