"""Consumer groups that a topic's messages have to reach in order, wherever they read so far.

A raft group knows the consumer groups that read the topic there. A consumer group that read in
other raft groups only, or subscribes and has read nothing yet, still has all messages of the old
queues before it (rule 23). All raft groups are asked: the only one that knows a consumer group may
hold no queue of the topic any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.broker.v1 import peer_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.peers import Peers
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.storage_client.holder_calls import HolderCalls


class TopicConsumers:
    """See the module docstring.

    Args:
        view: knows all consumer groups.
        holders: asks raft groups for the consumer groups that read a topic.
        peers: know the subscriptions of clients.
    """

    def __init__(self, view: MetadataView, holders: HolderCalls, peers: Peers) -> None:
        self._view = view
        self._holders = holders
        self._peers = peers

    async def ordered(self, topic: TopicRow) -> Sequence[int]:
        """Return the ids of the ordered consumer groups of a topic, rising.

        Raises:
            RequestError: a raft group did not answer.
        """
        found = await self._subscribed(topic) | await self._stored(topic)
        return sorted(
            group.consumer_group_id
            for group in self._view.consumer_groups()
            if group.fifo and group.consumer_group_id in found
        )

    async def _subscribed(self, topic: TopicRow) -> set[int]:
        wanted = peer_pb2.ListClientsRequest(namespace=topic.namespace, topic=topic.name)
        # A producer's topics are no subscriptions.
        names = {
            client.consumer_group
            for client in await self._peers.clients(wanted)
            if topic.name in client.subscriptions
        }
        groups = (self._view.consumer_group(topic.namespace, name) for name in names)
        return {group.consumer_group_id for group in groups if group is not None}

    async def _stored(self, topic: TopicRow) -> set[int]:
        answers = await self._holders.of_raft_groups(
            [row.raft_group for row in self._view.raft_groups()],
            "GetConsumers",
            storage_pb2.GetConsumersResponse,
            lambda raft_group: storage_pb2.GetConsumersRequest(
                raft_group=raft_group, topic_id=topic.topic_id
            ),
        )
        return {number for _, answer in answers for number in answer.consumer_group_ids}
