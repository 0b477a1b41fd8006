"""Lets Spark find `format("strata")` by itself: it looks into installed packages `pyspark_*`."""

from strata_placement.source.datasource import StrataDataSource as DefaultSource

__all__ = ["DefaultSource"]
