"""The HTTP/2 port in front of a broker."""
