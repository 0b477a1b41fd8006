"""From a receive to leases and back: delivery, acks, pulls."""
