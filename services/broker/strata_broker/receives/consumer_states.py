"""Where a consumer group is on the queues of a topic, as the leaders of all epochs know it."""

from __future__ import annotations

from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client import epochs
from strata_broker.storage_client.holder_calls import HolderCalls


class ConsumerStates:
    """See the module docstring.

    Args:
        holders: asks the raft groups.
    """

    def __init__(self, holders: HolderCalls) -> None:
        self._holders = holders

    async def of_topic(
        self, group: meta_pb2.ConsumerGroup, topic: TopicRow
    ) -> list[storage_pb2.ConsumerQueueState]:
        """Return the state on each queue of a topic, by number.

        Raises:
            RequestError: storage refused, or the metadata did not catch up in time.
        """
        answers = await self._holders.of_topic(
            topic,
            "GetConsumerState",
            storage_pb2.GetConsumerStateResponse,
            lambda raft_group, queues: state_request(group, topic, raft_group, queues),
        )
        return epochs.join_states(state for _, answer in answers for state in answer.queues)

    async def of_queue(
        self, group: meta_pb2.ConsumerGroup, topic: TopicRow, queue: int
    ) -> list[storage_pb2.ConsumerQueueState]:
        """Return the state on one queue; empty: nobody has the queue.

        Raises:
            RequestError: see `of_topic`.
        """
        answers = await self._holders.of_queue(
            topic,
            queue,
            "GetConsumerState",
            storage_pb2.GetConsumerStateResponse,
            lambda raft_group: state_request(group, topic, raft_group, (queue,)),
        )
        return epochs.join_states(state for _, answer in answers for state in answer.queues)


def state_request(
    group: meta_pb2.ConsumerGroup, topic: TopicRow, raft_group: int, queues: Sequence[int]
) -> storage_pb2.GetConsumerStateRequest:
    """Return the question for the state on queues of one raft group."""
    return storage_pb2.GetConsumerStateRequest(
        raft_group=raft_group,
        consumer_group_id=group.consumer_group_id,
        topic=topic_ref(topic),
        queues=queues,
    )
