"""The clients that hold auto-renewed leases, by the sets of leases, in memory or not.

A client may be listed for a set of which it holds nothing any more, never the other way round.
"""

from __future__ import annotations

from collections.abc import Collection

from strata_state.rows import ConsumerKey


class SetHolders:
    """See the module docstring."""

    __slots__ = ("_holder_counts", "_keys")

    def __init__(self) -> None:
        # Holder -> its sets.
        self._keys: dict[int, set[ConsumerKey]] = {}
        self._holder_counts: dict[ConsumerKey, int] = {}

    def add(self, holder: int, key: ConsumerKey) -> None:
        """Take in that a client holds leases of a set."""
        keys = self._keys.setdefault(holder, set())
        if key not in keys:
            keys.add(key)
            self._holder_counts[key] = self._holder_counts.get(key, 0) + 1

    def discard(self, holder: int, key: ConsumerKey) -> None:
        """Take in that a client holds no lease of a set."""
        keys = self._keys.get(holder)
        if keys is None or key not in keys:
            return
        keys.remove(key)
        if not keys:
            del self._keys[holder]
        self._holder_counts[key] -= 1
        if not self._holder_counts[key]:
            del self._holder_counts[key]

    def holders(self) -> list[int]:
        """Return the clients that may hold leases."""
        return list(self._keys)

    def keys_of(self, holder: int) -> list[ConsumerKey]:
        """Return the sets of which a client may hold leases."""
        return list(self._keys.get(holder, ()))

    def keys(self) -> Collection[ConsumerKey]:
        """Return the sets of which anybody may hold leases."""
        return self._holder_counts.keys()
