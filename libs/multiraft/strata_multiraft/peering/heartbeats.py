"""Store heartbeats between this node and one peer: boot ids, acknowledgements, support, clock.

Support (rule 13) holds while the peer acknowledges our recent heartbeats: then both directions
work. The arrival of a heartbeat alone proves nothing. Age is counted in heartbeats that we sent
since, not in elapsed time: a node that is late itself judges its peers by its own pace (rule 14).
This module reads no clock, sends nothing and knows no raft group.

Invariant: `confirmed_number` is the newest heartbeat of this process that the peer's present
process has acknowledged; it is at most `sent_number`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from strata.raft.v1 import raft_pb2

_OFFSETS = 8


@dataclass(frozen=True, slots=True)
class HeartbeatNews:
    """Effect of a received heartbeat.

    Attributes:
        fresh: it is newer than all before; what it says counts.
        regained: support holds again, or for the first time.
    """

    fresh: bool = False
    regained: bool = False


class PeerHeartbeats:
    """One peer, from the first heartbeat that was sent to it or received from it.

    Args:
        max_unconfirmed: our heartbeats after the newest acknowledged one that support outlives.
        sent_number: at least that of the newest heartbeat that this process ever sent to the peer,
            which may remember it. Acknowledgements of these do not count.
    """

    __slots__ = (
        "_forgotten_number",
        "_max_unconfirmed",
        "_offsets_ms",
        "boot_id",
        "confirmed_number",
        "disk_mark",
        "received_number",
        "sent_number",
        "supported",
    )

    def __init__(self, max_unconfirmed: int, sent_number: int = 0) -> None:
        self._max_unconfirmed = max_unconfirmed
        self._forgotten_number = sent_number
        self.boot_id = 0
        self.received_number = 0
        self.sent_number = sent_number
        self.supported = False
        self.confirmed_number = 0
        self.disk_mark = 0
        self._offsets_ms: deque[int] = deque(maxlen=_OFFSETS)

    def next_heartbeat(self, wall_ms: int) -> raft_pb2.Beat:
        """Return the next heartbeat to the peer, with its acknowledgements."""
        self.sent_number += 1
        return raft_pb2.Beat(
            number=self.sent_number,
            wall_ms=wall_ms,
            acknowledged_number=self.received_number,
            acknowledged_boot_id=self.boot_id,
        )

    def life(self, boot_id: int) -> bool:
        """Note the boot id of a frame from the peer; return whether it is another life."""
        if boot_id == self.boot_id:
            return False
        was_known = self.boot_id != 0
        self.boot_id = boot_id
        self.received_number = 0
        self.supported = False
        self.confirmed_number = 0
        self._offsets_ms.clear()
        return was_known

    def received(self, beat: raft_pb2.Beat, own_boot_id: int, wall_ms: int) -> HeartbeatNews:
        """Take a heartbeat of the peer's present process; repeated and late ones do not count."""
        if beat.number <= self.received_number:
            return HeartbeatNews()
        self.received_number = beat.number
        self.disk_mark = beat.disk_mark
        self._offsets_ms.append(beat.wall_ms - wall_ms)
        if beat.acknowledged_boot_id == own_boot_id:
            acknowledged = min(beat.acknowledged_number, self.sent_number)
            if acknowledged > self._forgotten_number:
                self.confirmed_number = max(self.confirmed_number, acknowledged)
        regained = not self.supported and self._is_young()
        self.supported = self.supported or regained
        return HeartbeatNews(fresh=True, regained=regained)

    def lose(self) -> bool:
        """Judge the silence; return whether support ended just now."""
        if not self.supported or self._is_young():
            return False
        self.supported = False
        return True

    def _is_young(self) -> bool:
        unconfirmed = self.sent_number - self.confirmed_number
        return self.confirmed_number > 0 and unconfirmed <= self._max_unconfirmed

    def offset_ms(self) -> int | None:
        """Return the peer's wall clock minus ours; None: not known.

        A delayed heartbeat makes the peer look late, never early, so the largest of the last few
        values is nearest to the truth.
        """
        return max(self._offsets_ms, default=None)


def skew_ms(offsets_ms: Iterable[int]) -> int:
    """Return this node's clock minus the median of all nodes, itself included (rule 4).

    Args:
        offsets_ms: the others' clocks minus this one's.

    The smaller of two middle values counts: two nodes that differ cannot tell which is wrong.
    """
    offsets = sorted([0, *offsets_ms])
    middle = len(offsets) // 2
    candidates = offsets[middle : middle + 1] if len(offsets) % 2 else offsets[middle - 1 :][:2]
    return -min(candidates, key=abs)
