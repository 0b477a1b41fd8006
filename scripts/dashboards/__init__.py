"""Grafana dashboards from code: `boards` says what they show, `rendering` how it becomes JSON.

`python -m scripts.dashboards` writes them into the chart; `--check` fails if they are not fresh.
"""
