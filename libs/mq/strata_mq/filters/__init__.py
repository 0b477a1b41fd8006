"""Filters of consumers: tags and SQL."""

from strata_mq.filters.filter_cache import CachePart, FilterCache
from strata_mq.filters.filters import (
    EVERYTHING,
    MAX_EXPRESSION_LENGTH,
    FilterKind,
    MessageFilter,
    TagFilter,
    parse_filter,
    parse_tag_expression,
    wants_every_tag,
)

__all__ = [
    "EVERYTHING",
    "MAX_EXPRESSION_LENGTH",
    "CachePart",
    "FilterCache",
    "FilterKind",
    "MessageFilter",
    "TagFilter",
    "parse_filter",
    "parse_tag_expression",
    "wants_every_tag",
]
