"""Forecasts, fail-slow detection and placement plans, in plain columns and on Spark."""
