"""Servers as processes: what each is composed of, its configuration, its data folder."""
