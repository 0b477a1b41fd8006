"""Queue of messages to one peer: a byte budget per traffic class, strict order of classes.

The queue decides only; it sends nothing. Rule 15: a full class drops only its own traffic, so a
lower class never takes the share of a higher class, and a higher class is always sent first. But
entries of one raft group must arrive in order: while messages of a raft group wait in a lower
class, its later messages wait there too. CONTROL does not concern entries and overtakes everything.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from strata_multiraft.base.ports import Envelope, TrafficClass
from strata_multiraft.peering.envelopes import size_bytes
from strata_multiraft.peering.peering_options import TransportOptions

_LOWEST_FIRST = (TrafficClass.FETCH, TrafficClass.APPEND, TrafficClass.LEASE)


class PeerQueue:
    """The queues of one peer, first in first out within a class."""

    __slots__ = ("_budgets", "_queues", "_waiting", "queued_bytes")

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
        # Envelopes of each raft group that wait, by class; CONTROL is not counted.
        self._waiting: dict[TrafficClass, Counter[int]] = {
            traffic: Counter() for traffic in TrafficClass if traffic is not TrafficClass.CONTROL
        }
        self.queued_bytes: dict[TrafficClass, int] = dict.fromkeys(TrafficClass, 0)

    def offer(self, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """Queue all of them, or none and return False.

        An empty class accepts any message, so that no single message is too large forever.
        """
        by_class: dict[TrafficClass, list[tuple[int, Envelope]]] = {}
        for envelope in envelopes:
            sized = size_bytes(envelope), envelope
            by_class.setdefault(self._class_behind(envelope, traffic), []).append(sized)
        sizes = {each: sum(size for size, _ in sized) for each, sized in by_class.items()}
        for each, size in sizes.items():
            if self.queued_bytes[each] and self.queued_bytes[each] + size > self._budgets[each]:
                return False
        for each, size in sizes.items():
            self.queued_bytes[each] += size
            self._queues[each].extend(by_class[each])
            if each is not TrafficClass.CONTROL:
                self._waiting[each].update(envelope.raft_group for _, envelope in by_class[each])
        return True

    def _class_behind(self, envelope: Envelope, traffic: TrafficClass) -> TrafficClass:
        """Return the lowest class in which its raft group waits already, or `traffic`."""
        if traffic is not TrafficClass.CONTROL:
            for lower in _LOWEST_FIRST:
                if lower <= traffic:
                    break
                if envelope.raft_group in self._waiting[lower]:
                    return lower
        return traffic

    def take(
        self,
        max_bytes: int,
        *,
        only_control: bool = False,
        lowest: TrafficClass = TrafficClass.FETCH,
    ) -> tuple[list[Envelope], int]:
        """Take what goes into the next frame, most important first.

        Args:
            max_bytes: size of a frame; the first envelope goes even if it is larger.
            only_control: leave the other classes where they are.
            lowest: leave the classes below this one where they are.

        Returns:
            (envelopes, their bytes).
        """
        taken: list[Envelope] = []
        taken_bytes = 0
        for traffic, queue in self._queues.items():
            if traffic > (TrafficClass.CONTROL if only_control else lowest):
                break
            while queue:
                size = queue[0][0]
                if taken and taken_bytes + size > max_bytes:
                    return taken, taken_bytes
                envelope = queue.popleft()[1]
                taken.append(envelope)
                taken_bytes += size
                self._left(traffic, envelope)
                self.queued_bytes[traffic] -= size
        return taken, taken_bytes

    def clear(self) -> list[Envelope]:
        """Drop and return everything that waits."""
        dropped = [envelope for queue in self._queues.values() for _, envelope in queue]
        for traffic, queue in self._queues.items():
            queue.clear()
            self.queued_bytes[traffic] = 0
            if traffic is not TrafficClass.CONTROL:
                self._waiting[traffic].clear()
        return dropped

    def has(self, lowest: TrafficClass) -> bool:
        """Tell whether anything of this class or a more important one waits."""
        return any(queue for traffic, queue in self._queues.items() if traffic <= lowest)

    def _left(self, traffic: TrafficClass, envelope: Envelope) -> None:
        if traffic is TrafficClass.CONTROL:
            return
        waiting = self._waiting[traffic]
        waiting[envelope.raft_group] -= 1
        if not waiting[envelope.raft_group]:
            del waiting[envelope.raft_group]

    def has_any(self) -> bool:
        """Tell whether anything waits."""
        return any(self._queues.values())
