"""Configuration, errors, ports and watchers that every other folder may use."""
