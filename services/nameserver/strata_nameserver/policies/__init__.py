"""Rules without state or I/O: where things should be, who is up, who is slow."""
