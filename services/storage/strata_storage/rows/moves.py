"""Sealed queues of a raft group: where they went, and which may have a step to do (rule 18).

The row of a move stays until the queue comes back or its topic goes, so there are as many as queues
were ever moved. All but a few *rest*: nothing is to be done for them until something changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strata_mq.commands import TrimmedQueue
from strata_mq.layout import MoveRow

QueueKey = tuple[int, int]
"""(topic id, queue)."""


class Moves(dict[QueueKey, MoveRow]):
    """(topic, queue) -> where a sealed queue went.

    Attributes:
        open: those that may have a step to do; at the start all of them.
    """

    def __init__(self, rows: dict[QueueKey, MoveRow]) -> None:
        super().__init__(rows)
        self.open = set(rows)
        # Those at rest -> the facts on which that was decided.
        self._resting: dict[QueueKey, object] = {}
        self._version = -1

    def seal(self, key: QueueKey, row: MoveRow) -> None:
        """Take in a queue that was sealed."""
        self[key] = row
        self.open.add(key)

    def forget(self, key: QueueKey) -> None:
        """Forget a queue that came back."""
        self.pop(key, None)
        self.open.discard(key)
        self._resting.pop(key, None)

    def drop_topic(self, topic_id: int) -> None:
        """Forget the queues of a topic."""
        for key in [key for key in self if key[0] == topic_id]:
            self.forget(key)

    def trimmed(self, queues: Iterable[TrimmedQueue]) -> None:
        """Open queues that begin later: they may be empty now."""
        self.open.update(
            (topic_id, queue) for topic_id, queue, _ in queues if (topic_id, queue) in self
        )

    def rest(self, key: QueueKey, facts: object) -> None:
        """Nothing is to be done for a queue until it is trimmed, or its facts are others."""
        self.open.discard(key)
        self._resting[key] = facts

    def renew(self, version: int, facts_of: Callable[[int, int], object]) -> None:
        """Open those at rest whose facts are other objects now; once for each version of facts."""
        if version != self._version:
            self._version = version
            changed = [key for key, facts in self._resting.items() if facts_of(*key) is not facts]
            for key in changed:
                del self._resting[key]
            self.open.update(changed)
