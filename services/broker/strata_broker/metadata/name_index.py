"""Names in their order, so that a page of a list costs a page and not the whole list.

The index holds references to the keys, which the tables have anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from sortedcontainers import SortedList

Name = tuple[str, str]
"""(namespace, name)."""

_SEPARATOR = "\x00"


def key_of(name: Name) -> str:
    """Return a name as one text; texts sort as the names do, which never hold a zero character."""
    return f"{name[0]}{_SEPARATOR}{name[1]}"


def name_of(key: str) -> Name:
    """Return the name of such a text."""
    namespace, _, name = key.partition(_SEPARATOR)
    return namespace, name


class NameIndex:
    """Names of topics or of consumer groups, by namespace and name."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys = SortedList()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str) -> None:
        """Add a name, by its key, that is not there yet."""
        self._keys.add(key)

    def remove(self, key: str) -> None:
        """Remove a name; nothing happens if it is not there."""
        self._keys.discard(key)

    def after(self, name: Name) -> Iterator[Name]:
        """Return the names behind one, which need not be there; read it before names change."""
        return map(name_of, self._keys.irange(key_of(name), inclusive=(False, True)))

    def starting_at(self, name: Name) -> Iterator[Name]:
        """Return the names from one on, which need not be there; read it before names change."""
        return map(name_of, self._keys.irange(key_of(name)))

    def beginning_with(self, namespace: str, prefix: str) -> Iterator[Name]:
        """Return the names of a namespace that begin with a prefix; read it before names change."""
        return takewhile(
            lambda name: name[0] == namespace and name[1].startswith(prefix),
            self.starting_at((namespace, prefix)),
        )
