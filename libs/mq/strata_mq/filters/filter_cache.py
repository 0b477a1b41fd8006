"""Parsed filters by their expressions: consumers send the same one with every call.

Bounded by number and by the length of all expressions, since a parsed expression takes memory in
proportion to its text. Bad expressions are not cached.
"""

from __future__ import annotations

from collections import OrderedDict

from strata_mq.filters.filters import FilterKind, MessageFilter, parse_filter


class FilterCache:
    """Filters used last.

    The filter of an expression stays the same object as long as it is remembered.

    Args:
        max_filters: how many are remembered.
        max_characters: how long their expressions may be together.
    """

    __slots__ = ("_characters", "_filters", "_max_characters", "_max_filters")

    def __init__(self, max_filters: int, max_characters: int) -> None:
        self._max_filters = max_filters
        self._max_characters = max_characters
        self._characters = 0
        # Least lately used first.
        self._filters: OrderedDict[tuple[FilterKind, str], MessageFilter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def characters(self) -> int:
        """Length of all expressions that are remembered."""
        return self._characters

    def __contains__(self, key: tuple[FilterKind, str]) -> bool:
        return key in self._filters

    def of(self, kind: FilterKind, expression: str) -> MessageFilter:
        """Return the filter of an expression.

        Raises:
            RequestError: ILLEGAL_FILTER_EXPRESSION.
        """
        key = (kind, expression)
        found = self._filters.get(key)
        if found is not None:
            self._filters.move_to_end(key)
            return found
        parsed = parse_filter(kind, expression)
        if len(expression) <= self._max_characters:
            self._filters[key] = parsed
            self._characters += len(expression)
            self._make_room()
        return parsed

    def _make_room(self) -> None:
        while len(self._filters) > self._max_filters or self._characters > self._max_characters:
            (_, expression), _ = self._filters.popitem(last=False)
            self._characters -= len(expression)
