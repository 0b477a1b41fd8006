"""Filters of consumers: tags and SQL."""

from strata_mq.filters.filter_cache import FilterCache
from strata_mq.filters.filters import (
    EVERYTHING,
    FilterKind,
    MessageFilter,
    TagFilter,
    parse_filter,
    parse_tag_expression,
)

__all__ = [
    "EVERYTHING",
    "FilterCache",
    "FilterKind",
    "MessageFilter",
    "TagFilter",
    "parse_filter",
    "parse_tag_expression",
]
