"""Parts of a dashboard, as its author sees them."""

from __future__ import annotations

from typing import NamedTuple

CLUSTER = 'cluster="$cluster"'
"""Label matcher that every query has."""


class Series(NamedTuple):
    """A query and the legend of its lines."""

    query: str
    legend: str = ""


class Graph(NamedTuple):
    """Lines over time; `unit` is Grafana's: short, ops, Bps, bytes, ms, s, percentunit."""

    title: str
    description: str
    unit: str
    series: tuple[Series, ...]


class Figure(NamedTuple):
    """One number; `warn_at` and `alarm_at` colour it, in rising or falling order."""

    title: str
    description: str
    unit: str
    query: str
    warn_at: float | None = None
    alarm_at: float | None = None


class Section(NamedTuple):
    """A titled row of panels."""

    title: str
    panels: tuple[Graph | Figure, ...]


class Board(NamedTuple):
    """A dashboard. `variables` are label names beside the cluster, in order of their choice."""

    uid: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[str, ...] = ()


def rate(metric: str, by: str = "", matchers: str = "") -> str:
    """Return the sum of a counter's rates, by labels."""
    chosen = f"{CLUSTER}, {matchers}" if matchers else CLUSTER
    return f"sum{_by(by)} (rate({metric}{{{chosen}}}[$__rate_interval]))"


def total(metric: str, by: str = "", matchers: str = "") -> str:
    """Return the sum of a gauge, by labels."""
    chosen = f"{CLUSTER}, {matchers}" if matchers else CLUSTER
    return f"sum{_by(by)} ({metric}{{{chosen}}})"


def highest(metric: str, by: str = "", matchers: str = "") -> str:
    """Return the greatest value of a gauge, by labels."""
    chosen = f"{CLUSTER}, {matchers}" if matchers else CLUSTER
    return f"max{_by(by)} ({metric}{{{chosen}}})"


def quantile(share: float, histogram: str, by: str = "", matchers: str = "") -> str:
    """Return a quantile of a histogram, by labels."""
    labels = f"{by}, le" if by else "le"
    buckets = rate(f"{histogram}_bucket", labels, matchers)
    return f"histogram_quantile({share}, {buckets})"


def quantiles(histogram: str, by: str = "", matchers: str = "") -> tuple[Series, ...]:
    """Return the median and the 99th percentile of a histogram."""
    suffix = "".join(f" {{{{{label.strip()}}}}}" for label in by.split(",") if label)
    return (
        Series(quantile(0.5, histogram, by, matchers), f"p50{suffix}"),
        Series(quantile(0.99, histogram, by, matchers), f"p99{suffix}"),
    )


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
