"""Simulated time, disk and network, workloads and checkers; for tests."""
