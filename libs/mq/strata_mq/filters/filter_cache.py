"""Parsed filters by their expressions: consumers send the same one with every call.

Bounded by number and by the length of all expressions, since a parsed expression takes memory in
proportion to its text. Bad expressions are not cached.

Where many clients share a cache, each filter belongs to the owners of the call that brought it, and
an owner has a part of the cache: an owner that brings ever new filters pushes out its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strata_mq.filters.filters import FilterKind, MessageFilter, parse_filter

CacheOwner = tuple[str, str]
"""(kind, name), for instance a client or an address."""

_Key = tuple[FilterKind, str]


class CachePart(NamedTuple):
    """The part of a cache that one owner of a kind may have.

    Attributes:
        max_filters: that it brought.
        max_characters: of their expressions together.
    """

    max_filters: int
    max_characters: int


class _Cached(NamedTuple):
    parsed: MessageFilter
    owners: Sequence[CacheOwner]


class _Held:
    """The filters of one owner, least lately used first, and the length of their expressions."""

    __slots__ = ("characters", "keys")

    def __init__(self) -> None:
        self.keys: OrderedDict[_Key, None] = OrderedDict()
        self.characters = 0

    def exceeds(self, part: CachePart) -> bool:
        """Whether it is more than a part."""
        return len(self.keys) > part.max_filters or self.characters > part.max_characters


class FilterCache:
    """Filters used last.

    The filter of an expression stays the same object as long as it is remembered.

    Args:
        max_filters: how many are remembered.
        max_characters: how long their expressions may be together.
        parts: what one owner of a kind may have of both; filters have owners of these kinds only.
    """

    __slots__ = ("_characters", "_filters", "_held", "_most", "_parts")

    def __init__(
        self, max_filters: int, max_characters: int, parts: Mapping[str, CachePart] | None = None
    ) -> None:
        self._most = CachePart(max_filters, max_characters)
        self._parts = dict(parts or {})
        self._characters = 0
        # Least lately used first.
        self._filters: OrderedDict[_Key, _Cached] = OrderedDict()
        self._held: dict[CacheOwner, _Held] = {}

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def characters(self) -> int:
        """Length of all expressions that are remembered."""
        return self._characters

    @property
    def owner_count(self) -> int:
        """Number of owners that have a filter here."""
        return len(self._held)

    def find(self, kind: FilterKind, expression: str) -> MessageFilter | None:
        """Return the filter of an expression that is remembered; its use counts, whoever asks."""
        key = (kind, expression)
        found = self._filters.get(key)
        if found is None:
            return None
        self._filters.move_to_end(key)
        for owner in found.owners:
            self._held[owner].keys.move_to_end(key)
        return found.parsed

    def of(
        self, kind: FilterKind, expression: str, owners: Sequence[CacheOwner] = ()
    ) -> MessageFilter:
        """Return the filter of an expression.

        Args:
            kind: of the expression.
            expression: of a client.
            owners: who has the filter, if it is a new one.

        Raises:
            RequestError: ILLEGAL_FILTER_EXPRESSION.
        """
        found = self.find(kind, expression)
        if found is not None:
            return found
        parsed = parse_filter(kind, expression)
        limits = (self._most, *(self._parts[owner_kind] for owner_kind, _ in owners))
        if len(expression) <= min(limit.max_characters for limit in limits):
            self._keep((kind, expression), _Cached(parsed, owners))
        return parsed

    def _keep(self, key: _Key, cached: _Cached) -> None:
        length = len(key[1])
        self._filters[key] = cached
        self._characters += length
        for owner in cached.owners:
            held = self._held.setdefault(owner, _Held())
            held.keys[key] = None
            held.characters += length
        # An owner makes room among its own filters first, so that others lose none by it.
        for owner in cached.owners:
            held, part = self._held[owner], self._parts[owner[0]]
            while held.exceeds(part):
                self._forget(next(iter(held.keys)))
        most = self._most
        while len(self._filters) > most.max_filters or self._characters > most.max_characters:
            self._forget(next(iter(self._filters)))

    def _forget(self, key: _Key) -> None:
        length = len(key[1])
        self._characters -= length
        for owner in self._filters.pop(key).owners:
            held = self._held[owner]
            del held.keys[key]
            held.characters -= length
            if not held.keys:
                del self._held[owner]
