"""Traffic of one raft group since the last look, by queue: messages stored and handed out.

It is counted once per part of a batch and per answer, not per message. Its size is bounded by the
queues that are active between two looks: the meter takes everything out at each of them, on
followers too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

QueueKey = tuple[int, int]
ConsumerKey = tuple[int, int, int]
Key = TypeVar("Key", QueueKey, ConsumerKey)


class Amount(NamedTuple):
    """Messages and their bytes."""

    messages: int
    size_bytes: int


_NOTHING = Amount(0, 0)


class Traffic:
    """See the module docstring. Keys: (topic id, queue); (consumer group id, topic id, queue)."""

    __slots__ = ("_delivered", "_stored")

    def __init__(self) -> None:
        self._stored: dict[QueueKey, Amount] = {}
        self._delivered: dict[ConsumerKey, Amount] = {}

    def stored(self, topic_id: int, queue: int, messages: int, size_bytes: int) -> None:
        """Count messages that a queue got."""
        _add(self._stored, (topic_id, queue), messages, size_bytes)

    def delivered(
        self, consumer_group_id: int, topic_id: int, messages: Iterable[tuple[int, int]]
    ) -> None:
        """Count messages that a consumer group was given, each (queue, bytes)."""
        sums: dict[int, list[int]] = {}
        for queue, size_bytes in messages:
            one = sums.setdefault(queue, [0, 0])
            one[0] += 1
            one[1] += size_bytes
        for queue, (count, size_bytes) in sums.items():
            _add(self._delivered, (consumer_group_id, topic_id, queue), count, size_bytes)

    def take(self) -> tuple[dict[QueueKey, Amount], dict[ConsumerKey, Amount]]:
        """Return what was (stored, delivered) since the last call."""
        taken = self._stored, self._delivered
        self._stored, self._delivered = {}, {}
        return taken


def _add(amounts: dict[Key, Amount], key: Key, messages: int, size_bytes: int) -> None:
    before = amounts.get(key, _NOTHING)
    amounts[key] = Amount(before.messages + messages, before.size_bytes + size_bytes)
