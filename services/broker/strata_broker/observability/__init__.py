"""What a broker counts, traces and publishes."""
