"""Recently seen message ids: two rotating generations by group time (rule 23).

The window answers one question quickly for a whole batch: is none of these ids known? The id rows
and the appends in flight give the position of the first message with a known id. So an id costs a
set entry (about 100 bytes), not an object with a position.

Invariant: every id that was stored from `since_ms` on is in one of the two generations. That is at
least `window_ms` ago, unless `max_ids` forced a rotation earlier, or the window was just begun:
then older ids are looked up in rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DedupeOptions:
    """Limits of the window of one raft group.

    Attributes:
        window_ms: an id is remembered at least this long.
        max_ids: ids in both generations together.
        rebuild_max_bytes: log that a new leader reads back to fill the window.
        clock_error_ms: by how much a client's clock may differ from group time for the time in its
            message ids to be believed; of other ids each is looked up while the window is short.
    """

    window_ms: int = 600_000
    max_ids: int = 1_000_000
    rebuild_max_bytes: int = 64 * 1024 * 1024
    clock_error_ms: int = 5_000


class DedupeWindow:
    """Ids of one raft group by topic. Not thread safe.

    Args:
        options: limits.
        since_ms: group time from which on every stored id will be added; 0: from the first one.

    Attributes:
        since_ms: group time from which on every stored id is known.
    """

    __slots__ = (
        "_new",
        "_new_ids",
        "_new_since_ms",
        "_old",
        "_old_ids",
        "_options",
        "_rotated_at_ms",
        "since_ms",
    )

    def __init__(self, options: DedupeOptions, *, since_ms: int = 0) -> None:
        self._options = options
        self.since_ms = self._new_since_ms = since_ms
        self._new: dict[int, set[bytes]] = {}
        self._old: dict[int, set[bytes]] = {}
        self._new_ids = 0
        self._old_ids = 0
        self._rotated_at_ms: int | None = None

    def __len__(self) -> int:
        return self._new_ids + self._old_ids

    def all_new(self, topic_id: int, ids: Iterable[bytes]) -> bool:
        """Whether none of `ids` is in the window."""
        new, old = self._new.get(topic_id), self._old.get(topic_id)
        return (new is None or new.isdisjoint(ids)) and (old is None or old.isdisjoint(ids))

    def known(self, topic_id: int, message_id: bytes) -> bool:
        """Whether this id is in the window."""
        return message_id in self._new.get(topic_id, ()) or message_id in self._old.get(
            topic_id, ()
        )

    def add(self, topic_id: int, ids: list[bytes], now_ms: int) -> None:
        """Remember ids that took offsets at group time `now_ms`."""
        if self._rotated_at_ms is None:
            self._rotated_at_ms = now_ms
        full = self._new_ids + len(ids) > self._options.max_ids // 2
        if full or now_ms - self._rotated_at_ms >= self._options.window_ms:
            self._rotate(now_ms)
        self._new.setdefault(topic_id, set()).update(ids)
        # Ids are new to the window when they come here, so the sum of set sizes grows by as many.
        self._new_ids += len(ids)

    def add_all(self, later: DedupeWindow, now_ms: int) -> None:
        """Remember everything that another window, begun later, remembers."""
        for generation in (later._old, later._new):
            for topic_id, ids in generation.items():
                self.add(topic_id, list(ids), now_ms)

    def forget_topic(self, topic_id: int) -> None:
        """Drop the ids of a topic that was dropped."""
        self._new_ids -= len(self._new.pop(topic_id, ()))
        self._old_ids -= len(self._old.pop(topic_id, ()))

    def _rotate(self, now_ms: int) -> None:
        self._old, self._old_ids = self._new, self._new_ids
        self._new, self._new_ids = {}, 0
        self._rotated_at_ms = now_ms
        self.since_ms, self._new_since_ms = self._new_since_ms, now_ms + 1
