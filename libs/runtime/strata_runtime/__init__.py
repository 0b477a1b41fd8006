"""Configuration, logging, metrics, lifecycle, TLS: what every process needs."""
