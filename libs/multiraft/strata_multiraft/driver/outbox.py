"""Outgoing messages: kept until their sync is done, sent together per node and class.

Sending never awaits (rule 15). Messages that a full peer queue drops are reported back, so that the
raft core probes that follower again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from strata_multiraft.base.ports import Envelope, NodeOf, TrafficClass, Transport
from strata_multiraft.replica.replica import Replica
from strata_raft import Message
from strata_raft.messages import AppendRequest, TimeoutNow, VoteRequest
from strata_runtime.metrics import Metrics

# More are no urgent request, whatever they are: looking at them would cost more than it brings.
_URGENT_ENTRIES_MAX = 64


def place_nowhere(replica_id: int) -> str | None:
    """Know no other node."""
    return None


def _class_of(replica: Replica, message: Message) -> TrafficClass:
    """Return the class of a message (rule 15).

    A question without entries, or the call to campaign, is no control traffic: where it overtook
    entries it would meet a follower which does not have them yet.
    """
    if isinstance(message, TimeoutNow):
        return TrafficClass.LEASE
    if not isinstance(message, AppendRequest):
        return TrafficClass.CONTROL
    entries = message.entries
    if entries and replica.stored.is_fetched(entries[0].index):
        return TrafficClass.FETCH
    if len(entries) <= _URGENT_ENTRIES_MAX and all(map(replica.is_urgent, entries)):
        return TrafficClass.LEASE
    return TrafficClass.APPEND


def _class_of_key(item: tuple[tuple[str, TrafficClass], object]) -> TrafficClass:
    return item[0][1]


class Outbox:
    """Collects the messages of one turn, and per replica those that wait for a sync."""

    __slots__ = (
        "_after_sync",
        "_dropped",
        "_lowest",
        "_may_campaign",
        "_node_of",
        "_ready",
        "_sent",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport | None,
        node_of: NodeOf,
        may_campaign: Callable[[], bool],
        *,
        metrics: Metrics,
    ) -> None:
        self._transport = transport
        self._may_campaign = may_campaign
        self._node_of = node_of
        self._ready: dict[tuple[str, TrafficClass], list[tuple[Replica, Envelope]]] = {}
        # The lowest class that was given in this turn, by node and raft group.
        self._lowest: dict[tuple[str, int], TrafficClass] = {}
        # Replica id -> (sequence whose sync they wait for, messages), ascending.
        self._after_sync: dict[int, deque[tuple[int, Sequence[Message]]]] = {}
        self._sent = metrics.counter("strata_raft_messages_total")
        self._dropped = metrics.counter("strata_raft_messages_dropped_total")

    def add(self, replica: Replica, messages: Sequence[Message]) -> None:
        """Send these with the next flush."""
        for message in messages:
            node_id = self._node_of(message.target)
            if node_id is None:
                continue  # not ours to place: the nameserver has not named its node yet
            if isinstance(message, VoteRequest) and not (message.transfer or self._may_campaign()):
                continue  # a clock that is off must not lead (rule 4)
            traffic = _class_of(replica, message)
            if traffic is not TrafficClass.CONTROL:
                # No message of a raft group overtakes another one.
                way = node_id, replica.raft_group
                traffic = self._lowest[way] = max(traffic, self._lowest.get(way, traffic))
            self._ready.setdefault((node_id, traffic), []).append(
                (replica, Envelope(replica.raft_group, message))
            )

    def add_after_sync(self, replica: Replica, sequence: int, messages: Sequence[Message]) -> None:
        """Send these once everything up to `sequence` is durable."""
        waiting = self._after_sync.setdefault(replica.replica_id, deque())
        waiting.append((sequence, messages))

    def synced(self, replica: Replica, sequence: int) -> None:
        """Let go what waited for syncs up to `sequence`."""
        waiting = self._after_sync.get(replica.replica_id)
        while waiting and waiting[0][0] <= sequence:
            self.add(replica, waiting.popleft()[1])

    def write_failed(self, replica: Replica) -> None:
        """Drop what waited: it would say that something is durable which is not."""
        self._after_sync.pop(replica.replica_id, None)

    def flush(self) -> list[tuple[Replica, int]]:
        """Hand everything to the transport; return (replica, target replica) that were dropped."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        self._lowest.clear()
        dropped: list[tuple[Replica, int]] = []
        for (node_id, traffic), outgoing in sorted(ready.items(), key=_class_of_key):
            labels = {"class": traffic.name.lower()}
            envelopes = [envelope for _, envelope in outgoing]
            if self._transport is not None and self._transport.send(node_id, envelopes, traffic):
                self._sent.add(len(envelopes), labels)
                continue
            self._dropped.add(len(envelopes), labels)
            dropped.extend({(replica, envelope.message.target) for replica, envelope in outgoing})
        return dropped
