"""What may be used: bytes in flight, quotas."""
