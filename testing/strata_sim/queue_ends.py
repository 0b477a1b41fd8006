"""Appends and reads of queue ends with their times, judged by linearizability.

A stored message is an append of one to its queue. Its delivery shows where it was stored, so the
check runs after everything was drained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strata_sim.history import History
from strata_sim.linearizability import QUEUE, Operation, check


@dataclass(slots=True)
class _Sent:
    called_s: float
    client: str
    returned_s: float = math.inf


class QueueEnds:
    """Questions of clients about the ends of queues, with their answers."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._reads: dict[tuple[str, int], list[Operation]] = defaultdict(list)

    def sent(self, message_id: str, called_s: float, client: str) -> None:
        """Note that a send goes out."""
        self._sent[message_id] = _Sent(called_s, client)

    def answered(self, message_id: str, returned_s: float) -> None:
        """Note that a send was answered with OK."""
        self._sent[message_id].returned_s = returned_s

    def read(self, topic: str, ends: Mapping[int, int], called_s: float, returned_s: float) -> None:
        """Note the next offsets of a topic's queues, as they were answered."""
        for queue, end in ends.items():
            self._reads[topic, queue].append(Operation(("next",), end, called_s, returned_s))

    def violations(self, history: History) -> Iterator[str]:
        """Find queues whose appends and reads have no order that explains the answers."""
        queues: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for message_id, positions in history.deliveries.items():
            sent = self._sent.get(message_id)
            for topic, queue, offset in positions:
                if sent is not None:
                    queues[topic, queue].append(
                        Operation(
                            ("append", 1), offset, sent.called_s, sent.returned_s, sent.client
                        )
                    )
        for key, reads in self._reads.items():
            queues[key].extend(reads)
        for (topic, queue), operations in sorted(queues.items()):
            operations.sort(key=lambda operation: operation.called_s)
            verdict = check(QUEUE, operations)
            if not verdict.linearizable:
                ordered = set(map(id, verdict.order))
                left = [operation for operation in operations if id(operation) not in ordered]
                yield f"not linearizable: {topic} queue {queue}: no place for {left[:3]}"
