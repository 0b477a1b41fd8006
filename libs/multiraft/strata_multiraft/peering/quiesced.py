"""Quiesced raft groups of a pair of nodes: the leading side's list and the following side's copy.

A quiesced raft group is not ticked and sends nothing. Each store heartbeat confirms the leaders of
all quiesced raft groups of a node at once, by number and hash of `(raft group, term)` (rule 13).
Heartbeats name newly quiesced raft groups until one such heartbeat is acknowledged. When number or
hash differ for two heartbeats in a row, the following side asks for the full list; then the lists
agree, whatever was lost.

Pure bookkeeping: `store_liveness.py` decides which raft group may quiesce, and wakes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MASK = (1 << 64) - 1
_TOLERATED_MISMATCHES = 1


class QuiescedGroup(NamedTuple):
    """A quiesced raft group at its leader; its log ends with `last_index`, committed.

    A leader may wake and rest again in the same term, with a longer log: that is another item.
    """

    raft_group: int
    term: int
    last_index: int


def mix(first: int, second: int) -> int:
    """Return a well spread 64-bit number that depends on both."""
    value = (first * 0x9E3779B97F4A7C15 + second * 0xD1B54A32D192ED03) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class QuiescedSet:
    """Raft groups with their terms; number and hash are kept up to date."""

    __slots__ = ("_items", "hash")

    def __init__(self) -> None:
        self._items: dict[int, QuiescedGroup] = {}
        self.hash = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QuiescedGroup]:
        return iter(self._items.values())

    def __contains__(self, raft_group: object) -> bool:
        return raft_group in self._items

    def get(self, raft_group: int) -> QuiescedGroup | None:
        """Return how the raft group quiesced; None: it did not."""
        return self._items.get(raft_group)

    def add(self, item: QuiescedGroup) -> None:
        """Add, or replace an item of another term or with another end of the log."""
        self.discard(item.raft_group)
        self._items[item.raft_group] = item
        self.hash = (self.hash + mix(item.raft_group, item.term)) & _MASK

    def discard(self, raft_group: int) -> bool:
        """Remove; return whether it was there."""
        item = self._items.pop(raft_group, None)
        if item is None:
            return False
        self.hash = (self.hash - mix(item.raft_group, item.term)) & _MASK
        return True


class LedQuiesced:
    """Quiesced raft groups that this node leads and a peer follows."""

    __slots__ = ("_unconfirmed", "groups", "list_wanted")

    def __init__(self) -> None:
        self.groups = QuiescedSet()
        self.list_wanted = False
        # Raft group -> the first heartbeat that named it; 0: none yet.
        self._unconfirmed: dict[int, int] = {}

    def add(self, item: QuiescedGroup) -> None:
        """A raft group is quiesced from now on."""
        self.groups.add(item)
        self._unconfirmed[item.raft_group] = 0

    def discard(self, raft_group: int) -> None:
        """A raft group is awake again."""
        self.groups.discard(raft_group)
        self._unconfirmed.pop(raft_group, None)

    def acknowledged(self, number: int) -> None:
        """The peer has everything up to this heartbeat."""
        for raft_group, named_in in list(self._unconfirmed.items()):
            if 0 < named_in <= number:
                del self._unconfirmed[raft_group]

    def take(self, number: int) -> tuple[list[QuiescedGroup], bool]:
        """Return the raft groups that heartbeat `number` names, and whether the list is full."""
        if self.list_wanted:
            self.list_wanted = False
            self._unconfirmed = {item.raft_group: number for item in self.groups}
            return list(self.groups), True
        for raft_group, named_in in self._unconfirmed.items():
            self._unconfirmed[raft_group] = named_in or number
        if not self._unconfirmed:
            return [], False
        return [item for item in self.groups if item.raft_group in self._unconfirmed], False


class FollowedQuiesced:
    """Raft groups that this node accepted as quiesced under a peer's leadership."""

    __slots__ = ("_mismatches", "groups", "refused", "want_list")

    def __init__(self) -> None:
        self.groups = QuiescedSet()
        self.refused: set[int] = set()
        self.want_list = False
        self._mismatches = 0

    def missing_in(self, items: Iterable[QuiescedGroup]) -> list[int]:
        """Return the raft groups that are quiesced here and are not in the peer's full list."""
        listed = {item.raft_group for item in items}
        return [item.raft_group for item in self.groups if item.raft_group not in listed]

    def compare(self, count: int, hash_: int) -> None:
        """Compare with what the peer says, after its news were taken."""
        if count == len(self.groups) and hash_ == self.groups.hash:
            self._mismatches = 0
            self.want_list = False
            return
        # Once may be a message that overtook the heartbeat, or was overtaken by it.
        self._mismatches += 1
        self.want_list = self._mismatches > _TOLERATED_MISMATCHES

    def take_refused(self) -> list[int]:
        """Return raft groups that the peer must wake, once: a lost heartbeat shows as mismatch."""
        refused, self.refused = self.refused, set()
        return sorted(refused)
