"""Keys of a cache by one of their numbers, so that a dropped topic's are found without a walk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class KeyIndex(Generic[Key]):
    """The keys that belong to each number (a topic id, a consumer group id).

    Most numbers have one key, which is kept without a set around it: an index of a million topics
    costs one entry of a dictionary for each.
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, Key | set[Key]] = {}

    def __len__(self) -> int:
        """Return how many numbers have keys."""
        return len(self._keys)

    def add(self, number: int, key: Key) -> None:
        """Add a key; nothing changes if it is there."""
        known = self._keys.get(number)
        if known is None:
            self._keys[number] = key
        elif isinstance(known, set):
            known.add(key)
        elif known != key:
            self._keys[number] = {known, key}

    def discard(self, number: int, key: Key) -> None:
        """Take a key out if it is there."""
        known = self._keys.get(number)
        if isinstance(known, set):
            known.discard(key)
            if not known:
                del self._keys[number]
        elif known == key and known is not None:
            del self._keys[number]

    def of(self, number: int) -> Iterable[Key]:
        """Return the keys of a number, in no order."""
        known = self._keys.get(number)
        if known is None:
            return ()
        return tuple(known) if isinstance(known, set) else (known,)

    def numbers(self) -> list[int]:
        """Return the numbers that have keys."""
        return list(self._keys)

    def keys(self) -> set[Key]:
        """Return the keys of all numbers; it looks at each of them."""
        keys: set[Key] = set()
        for known in self._keys.values():
            if isinstance(known, set):
                keys |= known
            else:
                keys.add(known)
        return keys

    def pop(self, number: int) -> Iterable[Key]:
        """Take out and return the keys of a number."""
        keys = self.of(number)
        self._keys.pop(number, None)
        return keys

    def clear(self) -> None:
        """Take out everything."""
        self._keys.clear()
