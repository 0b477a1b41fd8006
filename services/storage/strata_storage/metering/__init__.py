"""What a node counts: traffic by queue, metric windows, how full limits are."""
