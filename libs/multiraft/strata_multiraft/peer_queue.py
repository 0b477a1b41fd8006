"""What waits to be sent to one peer: a byte budget per traffic class, strict order of classes.

Decides only; sends nothing. Rule 15: a class that is full drops its own traffic and nothing else,
so a lower class never takes a higher one's share, and a higher class always goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from strata_multiraft.envelopes import size_bytes
from strata_multiraft.peering_options import TransportOptions
from strata_multiraft.ports import Envelope, TrafficClass


class PeerQueue:
    """The queues of one peer, first in first out within a class."""

    __slots__ = ("_budgets", "_queues", "queued_bytes")

    def __init__(self, options: TransportOptions) -> None:
        self._budgets: Mapping[TrafficClass, int] = {
            TrafficClass.CONTROL: options.max_control_bytes,
            TrafficClass.LEASE: options.max_lease_bytes,
            TrafficClass.APPEND: options.max_append_bytes,
            TrafficClass.FETCH: options.max_fetch_bytes,
        }
        self._queues: dict[TrafficClass, deque[tuple[int, Envelope]]] = {
            traffic: deque() for traffic in TrafficClass
        }
        self.queued_bytes: dict[TrafficClass, int] = dict.fromkeys(TrafficClass, 0)

    def offer(self, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """Queue all of them, or none and return False.

        An empty class takes whatever it is given, so that no single message is too large for ever.
        """
        sizes = [size_bytes(envelope) for envelope in envelopes]
        queued_bytes = self.queued_bytes[traffic]
        if queued_bytes and queued_bytes + sum(sizes) > self._budgets[traffic]:
            return False
        self.queued_bytes[traffic] = queued_bytes + sum(sizes)
        self._queues[traffic].extend(zip(sizes, envelopes, strict=True))
        return True

    def take(self, max_bytes: int, *, only_control: bool) -> tuple[list[Envelope], int]:
        """Take what goes into the next frame, most important first.

        Args:
            max_bytes: size of a frame; the first envelope goes even if it is larger.
            only_control: leave the other classes where they are.

        Returns:
            (envelopes, their bytes).
        """
        taken: list[Envelope] = []
        taken_bytes = 0
        for traffic, queue in self._queues.items():
            if only_control and traffic is not TrafficClass.CONTROL:
                break
            while queue:
                size = queue[0][0]
                if taken and taken_bytes + size > max_bytes:
                    return taken, taken_bytes
                taken.append(queue.popleft()[1])
                taken_bytes += size
                self.queued_bytes[traffic] -= size
        return taken, taken_bytes

    def clear(self) -> list[Envelope]:
        """Drop and return everything that waits."""
        dropped = [envelope for queue in self._queues.values() for _, envelope in queue]
        for traffic, queue in self._queues.items():
            queue.clear()
            self.queued_bytes[traffic] = 0
        return dropped

    def has_control(self) -> bool:
        """Tell whether control traffic waits."""
        return bool(self._queues[TrafficClass.CONTROL])

    def has_any(self) -> bool:
        """Tell whether anything waits."""
        return any(self._queues.values())
