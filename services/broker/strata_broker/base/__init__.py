"""Configuration, errors, parsing and limits that every other folder may use."""
