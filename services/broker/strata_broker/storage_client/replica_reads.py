"""Spreads reads of busy topics over all replicas of a raft group instead of its leader.

The leader decides which messages a pop or a pull gets and answers with their places. Their bytes
come from the replica that has given the fewest bytes lately, followers and read replicas included.
This is safe without a further round to the leader: a committed message at an offset never changes,
and a replica answers only once it has applied the leader's index at the time of the places. It
costs one more call, so it is done for topics that many consumer groups read, or that are read
much, and for raft groups with read replicas. `ReadSpread` chooses; `ReplicaReads` reads. Invariant:
messages that a replica cannot give are read from the leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import SERVICE, StorageClient
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_RPC = "ReadMessages"
_WINDOW_S = 10.0
# A replica that is gone, or not that far, is left alone for so long: it may be catching up.
_LEFT_ALONE_S = 3.0
_MAX_TRIES = 2


class MessagePlace(NamedTuple):
    """Where a message is, and how many bytes it has."""

    queue: int
    offset: int
    length: int


class NotGiven(NamedTuple):
    """Leases of a pop whose messages are not in its answer: they are to be released.

    Attributes:
        unreadable: no replica gave the message; it is to stay invisible for a while.
        others: no replica could be asked, or the message is behind an unreadable one.
    """

    unreadable: Sequence[storage_pb2.LeasedMessage]
    others: Sequence[storage_pb2.LeasedMessage]


@dataclass(slots=True)
class _Read:
    """The reads of a topic in one window: its readers, as far as they matter, and bytes."""

    groups: set[int] = field(default_factory=set)
    size_bytes: int = 0


class ReadSpread:
    """The topics that are read from all replicas, and the next replica of each.

    Args:
        view: knows the replicas.
        leaders: knows the leaders.
        config: conditions for spreading reads.
        clock: monotonic time.
        metrics: shows the use of the table of topics.
    """

    def __init__(
        self,
        view: MetadataView,
        leaders: LeaderMap,
        config: StorageClientSection,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._leaders = leaders
        self._config = config
        self._clock = clock
        self._window_ends_s = clock.monotonic_s() + _WINDOW_S
        # (raft group, topic id) -> what was read in this window and in the one before
        self._reads: dict[tuple[int, int], _Read] = {}
        self._reads_before: dict[tuple[int, int], _Read] = {}
        # raft group -> node -> bytes that it gave, or was asked for, in this window
        self._asked: dict[int, dict[str, int]] = {}
        # raft group -> nodes that could be asked when it was looked at last
        self._known: dict[int, frozenset[str]] = {}
        self._left_alone_until_s: dict[str, float] = {}
        # raft group -> until when its leader, as it is now, is not asked for messages' bytes
        self._unreadable_until_s: dict[tuple[int, str], float] = {}
        metrics.gauge("strata_broker_spread_topics", lambda: len(self._reads))
        metrics.gauge("strata_broker_spread_topics_maximum", lambda: config.max_spread_topics)

    def begin(self, raft_group: int, topic_id: int, consumer_group_id: int) -> bool:
        """Note that a consumer group reads a topic; tell whether to ask for places only."""
        key = (raft_group, topic_id)
        now, before = self._of(key), self._reads_before.get(key)
        enough = self._config.spread_from_groups
        if now is not None and len(now.groups) < enough:
            now.groups.add(consumer_group_id)
        row = self._view.raft_group(raft_group)
        if row is None or len(row.replicas) < 2:
            return False
        if self._leader_cannot_read(raft_group):
            return True
        return bool(row.membership.learners) or any(map(self._is_much, (now, before)))

    def count(self, raft_group: int, topic_id: int, size_bytes: int, *, from_leader: bool) -> None:
        """Note how much was read; what the leader gave by itself counts as its share."""
        read = self._of((raft_group, topic_id))
        if read is not None:
            read.size_bytes += size_bytes
        if from_leader:
            self.left_to_leader(raft_group, size_bytes)

    def left_to_leader(self, raft_group: int, size_bytes: int) -> None:
        """Note what the leader gives although it was not chosen."""
        leader = self._leaders.node_of(raft_group)
        if leader:
            self._take(raft_group, leader, size_bytes)

    def choose(self, raft_group: int, size_bytes: int, but: Collection[str] = ()) -> str:
        """Return the node to ask for so many bytes, none of `but`; empty: none can be asked."""
        self._turn_over()
        here = self._replicas(raft_group)
        self._welcome(raft_group, here)
        fit = [node for node in here if node not in but]
        if not fit:
            return ""
        asked = self._asked.get(raft_group, {})
        node_id = min(fit, key=lambda node: (asked.get(node, 0), node))
        self._take(raft_group, node_id, size_bytes)
        return node_id

    def unreadable(self, raft_group: int) -> None:
        """The leader's disk could not read a message: for a while the others are asked for bytes.

        Committed messages are the same on each replica, so a leader is needed for places only.
        """
        leader = self._leaders.node_of(raft_group)
        if leader:
            spared_s = self._config.unreadable_leader_ms / 1_000
            self._unreadable_until_s[raft_group, leader] = self._clock.monotonic_s() + spared_s

    def failed(self, node_id: str) -> None:
        """A node cannot be reached, or is not that far yet: it is left alone for a while."""
        self._left_alone_until_s[node_id] = self._clock.monotonic_s() + _LEFT_ALONE_S

    def _leader_cannot_read(self, raft_group: int) -> bool:
        until_s = self._unreadable_until_s.get(
            (raft_group, self._leaders.node_of(raft_group) or ""), 0.0
        )
        return self._clock.monotonic_s() < until_s

    def _welcome(self, raft_group: int, fit: Collection[str]) -> None:
        """Let new and returned replicas begin with the same count as the other replicas."""
        known = self._known.get(raft_group, frozenset())
        asked = self._asked.get(raft_group, {})
        least = min((asked.get(node, 0) for node in known.intersection(fit)), default=0)
        for node in set(fit) - known:
            if asked.get(node, 0) < least:
                asked[node] = least
        self._known[raft_group] = frozenset(fit)

    def _take(self, raft_group: int, node_id: str, size_bytes: int) -> None:
        asked = self._asked.setdefault(raft_group, {})
        asked[node_id] = asked.get(node_id, 0) + size_bytes

    def _is_much(self, read: _Read | None) -> bool:
        config = self._config
        return read is not None and (
            len(read.groups) >= config.spread_from_groups
            or read.size_bytes >= config.spread_above_bytes_per_s * _WINDOW_S
        )

    def _of(self, key: tuple[int, int]) -> _Read | None:
        """Return what is noted of a topic; None: of too many others already."""
        self._turn_over()
        read = self._reads.get(key)
        if read is None and len(self._reads) < self._config.max_spread_topics:
            read = self._reads[key] = _Read()
        return read

    def _turn_over(self) -> None:
        """Begin the next window if this one has ended."""
        now_s = self._clock.monotonic_s()
        if now_s < self._window_ends_s:
            return
        is_next = now_s < self._window_ends_s + _WINDOW_S
        self._reads_before = self._reads if is_next else {}
        self._reads = {}
        self._asked.clear()
        self._window_ends_s = now_s + _WINDOW_S
        self._left_alone_until_s = {
            node: until_s for node, until_s in self._left_alone_until_s.items() if until_s > now_s
        }
        self._unreadable_until_s = {
            key: until_s for key, until_s in self._unreadable_until_s.items() if until_s > now_s
        }

    def _replicas(self, raft_group: int) -> list[str]:
        """Return the nodes that have a replica in force and can be asked."""
        row = self._view.raft_group(raft_group)
        if row is None:
            return []
        members = {*row.membership.voters, *row.membership.learners}
        now_s = self._clock.monotonic_s()
        return [
            replica.node_id
            for replica in row.replicas
            if replica.replica_id in members
            and self._can_be_asked(replica.node_id)
            and now_s >= self._unreadable_until_s.get((raft_group, replica.node_id), 0.0)
        ]

    def _can_be_asked(self, node_id: str) -> bool:
        node = self._view.node(node_id)
        if node is None or node.state == meta_pb2.NODE_STATE_DOWN:
            return False
        until_s = self._left_alone_until_s.get(node_id)
        return until_s is None or self._clock.monotonic_s() >= until_s


class ReplicaReads:
    """Reads messages from replicas; see the module docstring.

    Args:
        spread: chooses.
        client: calls leaders.
        channels: to single nodes.
        config: time of a try.
        metrics: what came of it.
    """

    def __init__(
        self,
        spread: ReadSpread,
        client: StorageClient,
        channels: NodeChannels,
        *,
        config: StorageClientSection,
        metrics: Metrics,
    ) -> None:
        self.spread = spread
        self._client = client
        self._channels = channels
        self._try_s = config.try_timeout_ms / 1_000
        self._read_total = metrics.counter("strata_broker_replica_reads_total")
        client.on_unreadable(spread.unreadable)

    async def fill_popped(
        self, raft_group: int, topic_id: int, popped: storage_pb2.PopResponse, *, ordered: bool
    ) -> NotGiven:
        """Put the bytes into an answer that has only places; leave out what cannot be given.

        Args:
            raft_group: where the messages are.
            topic_id: of the topic.
            popped: the answer.
            ordered: nothing of a queue is given behind a message that no replica has: it may be of
                the same message group. A place does not tell the message group.
        """
        leased = list(popped.messages)
        places = [MessagePlace(one.queue, one.offset, one.message_length) for one in leased]
        try:
            found = await self.read(raft_group, topic_id, popped.applied_index, places)
        except RequestError:
            del popped.messages[:]
            return NotGiven((), leased)
        kept, unreadable, behind = (list[storage_pb2.LeasedMessage]() for _ in range(3))
        cut_queues = set[int]()
        for one, message in zip(leased, found, strict=True):
            if not message:
                unreadable.append(one)
                cut_queues.add(one.queue)
            elif ordered and one.queue in cut_queues:
                behind.append(one)
            else:
                one.message = message
                kept.append(one)
        if unreadable:
            del popped.messages[:]
            popped.messages.extend(kept)
        return NotGiven(unreadable, behind)

    async def fill_fetched(
        self, raft_group: int, topic_id: int, fetched: storage_pb2.FetchResponse
    ) -> bool:
        """Put the bytes into an answer that has only places; False: not all could be read.

        Raises:
            RequestError: the leader could not be asked.
        """
        places = [
            MessagePlace(one.queue, one.offset, one.message_length) for one in fetched.messages
        ]
        found = await self.read(raft_group, topic_id, fetched.applied_index, places)
        for one, message in zip(fetched.messages, found, strict=True):
            one.message = message
        return all(found)

    async def read(
        self, raft_group: int, topic_id: int, applied_index: int, places: Sequence[MessagePlace]
    ) -> list[bytes]:
        """Return messages in order; empty: no replica that was asked has it.

        Args:
            raft_group: where they are.
            topic_id: of the topic.
            applied_index: what a replica must have applied to have them.
            places: of the messages.

        Raises:
            RequestError: some are missing, and the leader could not be asked, or answered oddly.
        """
        found = [b""] * len(places)
        if not places:
            return found
        size_bytes = sum(place.length for place in places)
        request = _request(raft_group, topic_id, applied_index, places)
        tried: list[str] = []
        while len(tried) < _MAX_TRIES:
            node_id = self.spread.choose(raft_group, size_bytes, tried)
            if not node_id:
                break
            tried.append(node_id)
            answered = await self._ask(node_id, request)
            if answered:
                found[: len(answered)] = answered
                break
        missing = [at for at, message in enumerate(found) if not message]
        if missing:
            self._read_total.add(1, {"result": "left to the leader"})
            rest = [places[at] for at in missing]
            self.spread.left_to_leader(raft_group, sum(place.length for place in rest))
            response = await self._client.call(
                raft_group,
                _RPC,
                _request(raft_group, topic_id, applied_index, rest),
                storage_pb2.ReadMessagesResponse,
            )
            if len(response.messages) != len(missing):
                raise RequestError(
                    Code.INTERNAL_SERVER_ERROR,
                    f"storage gave {len(response.messages)} of {len(missing)} messages",
                )
            for at, message in zip(missing, response.messages, strict=True):
                found[at] = message
        if missing and not all(found):
            # The disks of the two that were asked cannot read them; that of a third one may.
            missing = [at for at in missing if not found[at]]
            rest = [places[at] for at in missing]
            node_id = self.spread.choose(raft_group, sum(place.length for place in rest), tried)
            if node_id:
                again = _request(raft_group, topic_id, applied_index, rest)
                for at, message in zip(missing, await self._ask(node_id, again), strict=False):
                    found[at] = message
        return found

    async def _ask(self, node_id: str, request: storage_pb2.ReadMessagesRequest) -> Sequence[bytes]:
        """Return what a node has; nothing when it does not answer in time, or is not that far."""
        try:
            response = await self._channels.to(node_id).call(
                SERVICE + _RPC, request, storage_pb2.ReadMessagesResponse, timeout_s=self._try_s
            )
        except AngeliaError as failure:
            self._read_total.add(1, {"result": failure.code})
            # A late replica is busy: the bytes that it was asked for count.
            if failure.code == UNAVAILABLE:
                self.spread.failed(node_id)
            return ()
        if response.HasField("refusal"):
            self._read_total.add(1, {"result": "refused"})
            self.spread.failed(node_id)
            return ()
        if len(response.messages) != len(request.offsets):
            # A node of another version; it is unknown which of the messages these are.
            self._read_total.add(1, {"result": "odd"})
            self.spread.failed(node_id)
            return ()
        self._read_total.add(1, {"result": "read"})
        return response.messages


def _request(
    raft_group: int, topic_id: int, applied_index: int, places: Iterable[MessagePlace]
) -> storage_pb2.ReadMessagesRequest:
    request = storage_pb2.ReadMessagesRequest(
        raft_group=raft_group, topic_id=topic_id, applied_index=applied_index
    )
    for place in places:
        request.queues.append(place.queue)
        request.offsets.append(place.offset)
    return request
