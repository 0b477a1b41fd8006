"""Queue ids of the remoting protocol, and the public names that gRPC has for the same queues.

A queue's id is its number in the topic. A dead-letter topic has a queue per raft group, which is
not numbered from 0; there the id is the place among the raft groups, which only become more.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.answers import RemotingRefusal
from strata_remoting import ResponseCode


def queue_numbers(view: MetadataView, topic: TopicRow) -> Sequence[int]:
    """Return the queues of a topic by their ids 0, 1, ..."""
    if topic.is_dead_letter:
        return sorted(queue for home in view.homes(topic) for queue in home.queues)
    return range(topic.queue_count)


def queue_number(view: MetadataView, topic: TopicRow, queue_id: int) -> int:
    """Return the queue that has an id.

    Raises:
        RemotingRefusal: SYSTEM_ERROR, with RocketMQ's text: the topic has no such queue.
    """
    numbers = queue_numbers(view, topic)
    if not 0 <= queue_id < len(numbers):
        raise RemotingRefusal(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{queue_id}] is illegal, topic:[{topic.name}] "
            f"topicConfig.readQueueNums:[{len(numbers)}]",
        )
    return numbers[queue_id]


def public_queue(view: MetadataView, topic: TopicRow, queue: int) -> definition_pb2.MessageQueue:
    """Return the name that calls with an offset have for a queue: broker name and local id.

    Raises:
        RemotingRefusal: SERVICE_NOT_AVAILABLE: no raft group serves the queue.
    """
    for home in view.homes(topic):
        if queue in home.queues:
            return definition_pb2.MessageQueue(
                topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
                id=list(home.queues).index(queue),
                broker=definition_pb2.Broker(name=home.broker_name),
            )
    raise RemotingRefusal(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"queue {queue} of {topic.name} is not served now"
    )


def known_topic(view: MetadataView, name: str) -> TopicRow:
    """Return a topic that holds messages.

    Raises:
        RequestError: TOPIC_NOT_FOUND.
    """
    topic = view.topic("", name)
    if topic is None or topic.is_table:
        raise topic_not_found(name)
    return topic
