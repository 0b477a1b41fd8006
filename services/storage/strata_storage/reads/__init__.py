"""Messages and offsets read without a lease."""
