"""Snapshots of replicas: their source, their transfer and their installation."""
