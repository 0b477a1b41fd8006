"""Turns leased messages into the responses of a receive, and releases those that no client takes.

Fields of this delivery are added to the stored bytes (`wire.received_message`); no message is
parsed. Storage returns only messages that pass the subscription's filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.base import wire
from strata_broker.base.message_traces import MessageTraces
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.stored_messages import shown_message
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import ReceiptHandle


class Given(NamedTuple):
    """The leases of an answer, without their messages.

    Attributes:
        raft_group: where they are.
        consumer_group_id: whose they are.
        topic_id: of their messages.
        leases: (queue, offset, lease number, generation, visible at) of each.
    """

    raft_group: int
    consumer_group_id: int
    topic_id: int
    leases: Sequence[tuple[int, int, int, int, int]]


def given_by(
    raft_group: int,
    consumer_group_id: int,
    topic_id: int,
    leased: Iterable[storage_pb2.LeasedMessage],
) -> Given:
    """Return the leases of messages."""
    leases = [
        (one.queue, one.offset, one.lease_number, one.generation, one.visible_at_ms)
        for one in leased
    ]
    return Given(raft_group, consumer_group_id, topic_id, leases)


class Deliverer:
    """See the module docstring."""

    def __init__(
        self,
        storage: StorageClient,
        store_host: str,
        *,
        runtime: CallRuntime,
        traces: MessageTraces | None = None,
    ) -> None:
        self._handles = runtime.handles
        self._traces = traces if traces is not None and traces.tracer.enabled else None
        self._storage = storage
        self._store_host = store_host
        self._clock = runtime.clock
        self._recorder = runtime.recorder
        self._released = runtime.metrics.counter("strata_broker_released_total")

    def set_store_host(self, store_host: str) -> None:
        """Set the host that messages name as the one that stored them."""
        self._store_host = store_host

    def responses(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        popped: storage_pb2.PopResponse,
        trouble: str = "",
    ) -> list[bytes]:
        """Return the serialised responses of a receive: status, messages, delivery timestamp.

        Args:
            raft_group: where the messages were leased.
            group: consumer group of the receive.
            topic: of the messages.
            popped: the leased messages.
            trouble: why messages may be missing, for a receive without messages.
        """
        if not popped.messages:
            return wire.nothing(self._clock.wall_ms(), trouble)
        if self._traces is not None:
            self._traces.delivered(topic.name, group.name, popped, self._store_host)
        responses = [wire.RECEIVE_OK]
        sizes, counts = [0, 0], [0, 0]
        handles = self._receipts(raft_group, group, topic, popped)
        for leased, handle in zip(popped.messages, handles, strict=True):
            message, attempt = leased.message, leased.attempt_count
            responses.append(
                shown_message(
                    topic,
                    message,
                    leased.store_time_ms,
                    self._store_host,
                    leased.queue,
                    leased.offset,
                    handle,
                    attempt,
                )
            )
            is_retry = attempt > 1
            sizes[is_retry] += len(message)
            counts[is_retry] += 1
        responses.append(wire.delivery_timestamp(self._clock.wall_ms()))
        self._recorder.delivered(topic, group.name, (sizes[0], sizes[1]), (counts[0], counts[1]))
        return responses

    async def release(self, given: Given, timeout_s: float) -> None:
        """Make undelivered messages visible again; this counts as no attempt (rule 36).

        Raises:
            RequestError: storage did not release them; the leases expire or end with their holder.
        """
        if not given.leases:
            return
        request = storage_pb2.ReleaseRequest(raft_group=given.raft_group)
        for queue, offset, lease_number, generation, visible_at_ms in given.leases:
            request.undelivered.add(
                consumer_group_id=given.consumer_group_id,
                topic_id=given.topic_id,
                queue=queue,
                offset=offset,
                lease_number=lease_number,
                generation=generation,
                visible_at_ms=visible_at_ms,
            )
        response = await self._storage.call(
            given.raft_group,
            "Release",
            request,
            storage_pb2.ReleaseResponse,
            timeout_s=timeout_s,
        )
        self._released.add(response.released)

    def _receipts(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        popped: storage_pb2.PopResponse,
    ) -> Sequence[str]:
        """Return the receipt handle of each message."""
        group_id, topic_id = group.consumer_group_id, topic.topic_id
        leases = given_by(raft_group, group_id, topic_id, popped.messages).leases
        return self._handles.receipts(
            [ReceiptHandle(raft_group, group_id, topic_id, *one, one[4] == 0) for one in leases]
        )
