"""Turns leased messages into the responses of a receive, and gives back what nobody takes.

What belongs to this delivery is added to the stored bytes (`wire.received_message`); only a tag
filter makes a message be parsed, because different tags can have one hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker import wire
from strata_broker.acks import Acker
from strata_broker.config import BrokerConfig
from strata_broker.metadata import TopicRow
from strata_broker.recorder import Recorder
from strata_broker.storage_client import StorageClient
from strata_mq.delivery import DeadLetterOrigin, delivery_fragment
from strata_mq.errors import RequestError
from strata_mq.filters import TagFilter
from strata_mq.handle import ReceiptHandle, encode_handle
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics


class _Nobody:
    """Waits for acks whose outcome changes nothing: the lease runs out by itself."""

    def settled(self, index: int, failure: RequestError | None) -> None:
        """See `acks.AckWaiter`."""


class Deliverer:
    """See the module docstring."""

    def __init__(
        self,
        storage: StorageClient,
        acker: Acker,
        config: BrokerConfig,
        store_host: str,
        clock: Clock,
        recorder: Recorder,
        metrics: Metrics,
    ) -> None:
        self._storage = storage
        self._acker = acker
        self._call_timeout_s = config.storage_client.call_timeout_ms / 1000
        self._store_host = store_host
        self._clock = clock
        self._recorder = recorder
        self._filtered = metrics.counter("strata_broker_filtered_total")
        self._released = metrics.counter("strata_broker_released_total")

    def set_store_host(self, store_host: str) -> None:
        """Say what messages name as the host that stored them."""
        self._store_host = store_host

    def responses(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        tag_filter: TagFilter,
        popped: storage_pb2.PopResponse,
    ) -> list[bytes]:
        """Return the serialised responses of a receive: status, messages, delivery timestamp."""
        wanted: Sequence[storage_pb2.LeasedMessage] = popped.messages
        if tag_filter.tags is not None:
            wanted = self._matching(raft_group, group, topic, tag_filter, popped.messages)
        if not wanted:
            return wire.nothing(self._clock.wall_ms())
        responses = [wire.RECEIVE_OK]
        sizes, counts = [0, 0], [0, 0]
        for leased in wanted:
            message = leased.message
            responses.append(self._response(raft_group, group, topic, leased))
            is_retry = leased.attempt_count > 1
            sizes[is_retry] += len(message)
            counts[is_retry] += 1
        responses.append(wire.delivery_timestamp(self._clock.wall_ms()))
        self._recorder.delivered(
            topic.name, group.name, (sizes[0], sizes[1]), (counts[0], counts[1])
        )
        return responses

    async def release(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        popped: storage_pb2.PopResponse,
    ) -> None:
        """Make messages visible again whose client went away before they came.

        Raises:
            RequestError: storage did not take it; the leases run out or die with their holder.
        """
        for leased in popped.messages:
            await self._storage.call(
                raft_group,
                "ChangeInvisible",
                storage_pb2.ChangeInvisibleRequest(
                    raft_group=raft_group, lease=_lease_ref(group, topic, leased), invisible_ms=0
                ),
                storage_pb2.ChangeInvisibleResponse,
            )
            self._released.add()

    def _response(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        leased: storage_pb2.LeasedMessage,
    ) -> bytes:
        handle = encode_handle(
            ReceiptHandle(
                raft_group,
                group.consumer_group_id,
                topic.topic_id,
                leased.queue,
                leased.offset,
                leased.lease_number,
                leased.generation,
                leased.visible_at_ms,
                leased.visible_at_ms == 0,
            )
        )
        origin = None
        rest = b""
        if topic.is_dead_letter:
            stored = definition_pb2.Message.FromString(leased.message)
            origin = DeadLetterOrigin(stored.topic.name, stored.system_properties.message_id)
            # The stored message still names the topic it was first sent to.
            rest = definition_pb2.Message(
                topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name)
            ).SerializeToString()
        fragment = delivery_fragment(
            leased.store_time_ms,
            self._store_host,
            handle,
            leased.queue,
            leased.offset,
            leased.attempt_count,
            origin,
        )
        return wire.received_message(leased.message, fragment, rest)

    def _matching(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        tag_filter: TagFilter,
        messages: Sequence[storage_pb2.LeasedMessage],
    ) -> list[storage_pb2.LeasedMessage]:
        """Return the messages whose tag is wanted; ack the others silently."""
        wanted = []
        deadline_s = self._clock.monotonic_s() + self._call_timeout_s
        for leased in messages:
            stored = definition_pb2.Message.FromString(leased.message)
            if tag_filter.matches(stored.system_properties.tag):
                wanted.append(leased)
                continue
            self._filtered.add()
            lease = _lease_ref(group, topic, leased)
            self._acker.ack(raft_group, lease, _Nobody(), 0, deadline_s)
        return wanted


def _lease_ref(
    group: meta_pb2.ConsumerGroup, topic: TopicRow, leased: storage_pb2.LeasedMessage
) -> storage_pb2.LeaseRef:
    return storage_pb2.LeaseRef(
        consumer_group_id=group.consumer_group_id,
        topic_id=topic.topic_id,
        queue=leased.queue,
        offset=leased.offset,
        lease_number=leased.lease_number,
        generation=leased.generation,
        visible_at_ms=leased.visible_at_ms,
    )
