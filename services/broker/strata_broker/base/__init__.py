"""Configuration, errors, parsing and limits for all other folders."""
