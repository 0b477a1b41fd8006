"""Consumer groups that a topic's messages have to reach in order, wherever they read so far.

A raft group knows the consumer groups that read the topic there. A consumer group that read in
other raft groups only, or subscribes and has read nothing yet, still has all messages of the old
queues before it (rule 23). All raft groups are asked: the only one that knows a consumer group may
hold no queue of the topic any more.

A topic may wait for a slow consumer group for hours, and is looked at every second. So what raft
groups answered holds for a moment, and longer each time that they answer the same; so does a
failure, while one of them has no leader. Subscriptions of clients hold for a shorter time: each
look at them asks every broker. A consumer group that begins to read later may find messages of a
message group in old and new queues anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata.broker.v1 import peer_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.peers import BrokerPeers
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock

# How long answers of raft groups hold; an answer that repeats itself, up to `_MOST_HOLDS_S`.
_HOLDS_S, _MOST_HOLDS_S = 10.0, 80.0
# A failure holds up to `_HOLDS_S`.
_FAILURE_HOLDS_S = 1.0
# How long subscriptions hold; those that repeat themselves, up to `_HOLDS_S`.
_SUBSCRIBED_HOLDS_S = 1.0


class _Stored(NamedTuple):
    """Consumer groups that read a topic.

    Attributes:
        queue_count: of the topic when raft groups were asked: each growth asks anew.
        holds_s: how long this holds.
        until_s: monotonic time.
        consumer_group_ids: of these groups; as known before a failure.
        failure: why they are not known.
    """

    queue_count: int
    holds_s: float
    until_s: float
    consumer_group_ids: frozenset[int]
    failure: RequestError | None = None


class _Subscribed(NamedTuple):
    """Consumer groups whose clients subscribe to a topic; see `_Stored`."""

    queue_count: int
    holds_s: float
    until_s: float
    consumer_group_ids: frozenset[int]


async def stored_consumers(
    view: MetadataView, holders: HolderCalls, topic: TopicRow
) -> frozenset[int]:
    """Return the ids of the consumer groups that read a topic, by one call to each raft group.

    Raises:
        RequestError: a raft group did not answer.
    """
    answers = await holders.of_raft_groups(
        [row.raft_group for row in view.raft_groups()],
        "GetConsumers",
        storage_pb2.GetConsumersResponse,
        lambda raft_group: storage_pb2.GetConsumersRequest(
            raft_group=raft_group, topic_id=topic.topic_id
        ),
    )
    return frozenset(number for _, answer in answers for number in answer.consumer_group_ids)


class TopicConsumers:
    """See the module docstring.

    Args:
        view: knows all consumer groups.
        holders: asks raft groups for the consumer groups that read a topic.
        peers: know the subscriptions of clients.
        clock: ends what raft groups answered.
    """

    def __init__(
        self, view: MetadataView, holders: HolderCalls, peers: BrokerPeers, *, clock: Clock
    ) -> None:
        self._view = view
        self._clock = clock
        # By topic id; of topics that grow.
        self._stored_of: dict[int, _Stored] = {}
        self._subscribed_of: dict[int, _Subscribed] = {}
        self._holders = holders
        self._peers = peers

    async def ordered(self, topic: TopicRow) -> Sequence[int]:
        """Return the ids of the ordered consumer groups of a topic, rising.

        Raises:
            RequestError: a raft group did not answer.
        """
        found = await self._subscribed(topic) | await self._stored(topic)
        groups = map(self._view.consumer_group_by_id, sorted(found))
        return [group.consumer_group_id for group in groups if group is not None and group.fifo]

    def forget_others(self, rehashing: Iterable[TopicRow]) -> None:
        """Forget what is known of topics that do not grow any more."""
        kept = {topic.topic_id for topic in rehashing}
        for topic_id in self._stored_of.keys() - kept:
            del self._stored_of[topic_id]
        for topic_id in self._subscribed_of.keys() - kept:
            del self._subscribed_of[topic_id]

    async def _subscribed(self, topic: TopicRow) -> frozenset[int]:
        """Return the consumer groups that subscribe, as known of late."""
        now_s = self._clock.monotonic_s()
        known = self._subscribed_of.get(topic.topic_id)
        if known is not None and known.queue_count != topic.queue_count:
            known = None
        if known is not None and now_s < known.until_s:
            return known.consumer_group_ids
        found = await self._subscribers(topic)
        holds_s = _SUBSCRIBED_HOLDS_S
        if known is not None and known.consumer_group_ids == found:
            holds_s = min(2 * known.holds_s, _HOLDS_S)
        until_s = self._clock.monotonic_s() + holds_s
        self._subscribed_of[topic.topic_id] = _Subscribed(
            topic.queue_count, holds_s, until_s, found
        )
        return found

    async def _subscribers(self, topic: TopicRow) -> frozenset[int]:
        """Ask the clients of all brokers."""
        wanted = peer_pb2.ListClientsRequest(namespace=topic.namespace, topic=topic.name)
        # A producer's topics are no subscriptions.
        names = {
            client.consumer_group
            for client in await self._peers.clients(wanted)
            if topic.name in client.subscriptions
        }
        groups = (self._view.consumer_group(topic.namespace, name) for name in names)
        return frozenset(group.consumer_group_id for group in groups if group is not None)

    async def _stored(self, topic: TopicRow) -> frozenset[int]:
        """Return the consumer groups of which raft groups hold something, as known of late.

        Raises:
            RequestError: a raft group did not answer, now or a moment ago.
        """
        now_s = self._clock.monotonic_s()
        known = self._stored_of.get(topic.topic_id)
        if known is not None and known.queue_count != topic.queue_count:
            known = None
        if known is None or now_s >= known.until_s:
            known = self._stored_of[topic.topic_id] = await self._look(topic, known)
        if known.failure is not None:
            raise known.failure
        return known.consumer_group_ids

    async def _look(self, topic: TopicRow, before: _Stored | None) -> _Stored:
        """Ask raft groups; what they answer holds longer if it is not new."""
        failure = None
        try:
            found = await stored_consumers(self._view, self._holders, topic)
        except RequestError as failed:
            failure = failed.without_stack()
            found = before.consumer_group_ids if before is not None else frozenset()
        holds_s, most_s = _HOLDS_S, _MOST_HOLDS_S
        if failure is not None:
            holds_s, most_s = _FAILURE_HOLDS_S, _HOLDS_S
        has_failed_before = before is not None and before.failure is not None
        is_same = before is not None and before.consumer_group_ids == found
        if before is not None and is_same and has_failed_before == (failure is not None):
            holds_s = min(2 * before.holds_s, most_s)
        until_s = self._clock.monotonic_s() + holds_s
        return _Stored(topic.queue_count, holds_s, until_s, found, failure)
