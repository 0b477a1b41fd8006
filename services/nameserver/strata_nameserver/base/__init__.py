"""Configuration and errors."""
