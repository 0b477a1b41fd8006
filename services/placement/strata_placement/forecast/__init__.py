"""Forecasts of loads: one small forecaster per queue, in plain Python, with intervals."""
