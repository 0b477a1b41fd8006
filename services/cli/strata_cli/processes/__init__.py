"""Servers as processes: their composition, their configuration, their data folders."""
