"""Turns leased messages into the responses of a receive, and releases those that no client takes.

Fields of this delivery are added to the stored bytes (`wire.received_message`); no message is
parsed. Storage returns only messages that pass the subscription's filter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.base import wire
from strata_broker.base.message_traces import MessageTraces
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.stored_messages import shown_message
from strata_broker.receives.receive_passes import new_delivery_pass
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import ReceiptHandle

# Queue, offset, lease number, generation, visible at.
_LEASE = struct.Struct(">IQIIQ")
_Delivered = tuple[list[bytes], bytes, tuple[int, int], tuple[int, int]]


class Given(NamedTuple):
    """The leases of an answer, without their messages.

    Attributes:
        raft_group: where they are.
        consumer_group_id: whose they are.
        topic_id: of their messages.
        packed: 28 bytes of each.
        unreadable: no replica could read their messages.
    """

    raft_group: int
    consumer_group_id: int
    topic_id: int
    packed: bytes
    unreadable: bool = False

    @property
    def lease_count(self) -> int:
        """Number of leases."""
        return len(self.packed) // _LEASE.size

    def leases(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Return queue, offset, lease number, generation and end of each lease."""
        return _LEASE.iter_unpack(self.packed)

    def without(self, other: Given) -> Given:
        """Return these leases but those of `other`, which may be of another raft group."""
        if other.raft_group != self.raft_group or not other.packed:
            return self
        taken = {lease[:-1] for lease in other.leases()}
        left = [_LEASE.pack(*lease) for lease in self.leases() if lease[:-1] not in taken]
        return self._replace(packed=b"".join(left))


class ReceiveAnswer(NamedTuple):
    """The answer of a receive.

    Attributes:
        responses: serialised: status, messages, delivery timestamp.
        given: the leases of its messages.
        size_bytes: of its messages, as they are stored.
    """

    responses: list[bytes]
    given: Given
    size_bytes: int


def given_by(
    raft_group: int,
    consumer_group_id: int,
    topic_id: int,
    leased: Iterable[storage_pb2.LeasedMessage],
) -> Given:
    """Return the leases of messages."""
    pack = _LEASE.pack
    leases = [
        pack(one.queue, one.offset, one.lease_number, one.generation, one.visible_at_ms)
        for one in leased
    ]
    return Given(raft_group, consumer_group_id, topic_id, b"".join(leases))


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
        self._pass = new_delivery_pass(runtime.passes)
        self._traces = traces if traces is not None and traces.tracer.enabled else None
        self._storage = storage
        self._store_host = store_host
        self._clock = runtime.clock
        self._recorder = runtime.recorder
        self._released = runtime.metrics.counter("strata_broker_released_total")

    def set_store_host(self, store_host: str) -> None:
        """Set the host that messages name as the one that stored them."""
        self._store_host = store_host

    def answer(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        popped: storage_pb2.PopResponse,
        trouble: str = "",
    ) -> ReceiveAnswer:
        """Return the answer of a receive.

        Args:
            raft_group: where the messages were leased.
            group: consumer group of the receive.
            topic: of the messages.
            popped: the leased messages.
            trouble: why messages may be missing, for a receive without messages.
        """
        if not popped.messages:
            nothing = Given(raft_group, group.consumer_group_id, topic.topic_id, b"")
            return ReceiveAnswer(wire.nothing(self._clock.wall_ms(), trouble), nothing, 0)
        if self._traces is not None:
            self._traces.delivered(topic.name, group.name, popped, self._store_host)
        place = raft_group, group.consumer_group_id, topic.topic_id
        delivered = self._passed(place, topic, popped)
        if delivered is None:
            delivered = self._joined(place, topic, popped)
        messages, packed, sizes, counts = delivered
        responses = [wire.RECEIVE_OK, *messages, wire.delivery_timestamp(self._clock.wall_ms())]
        self._recorder.delivered(topic, group.name, sizes, counts)
        return ReceiveAnswer(responses, Given(*place, packed), sum(sizes))

    async def release(self, given: Given, timeout_s: float) -> None:
        """Make undelivered messages visible again; this counts as no attempt (rule 36).

        Messages of unreadable leases stay invisible until the leases would have ended, so that
        nobody pops them in vain again and again.

        Raises:
            RequestError: storage did not release them; the leases expire or end with their holder.
        """
        if not given.packed:
            return
        request = storage_pb2.ReleaseRequest(raft_group=given.raft_group)
        refs = request.unreadable if given.unreadable else request.undelivered
        for queue, offset, lease_number, generation, visible_at_ms in given.leases():
            refs.add(
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

    def _passed(
        self, place: tuple[int, int, int], topic: TopicRow, popped: storage_pb2.PopResponse
    ) -> _Delivered | None:
        """Return what the native pass makes of messages; None: it does not take them."""
        if self._pass is None or topic.is_dead_letter:
            return None
        key = self._handles.keys().signing
        if key is None:
            return None
        return self._pass.deliver(popped.SerializeToString(), place, self._store_host.encode(), key)

    def _joined(
        self, place: tuple[int, int, int], topic: TopicRow, popped: storage_pb2.PopResponse
    ) -> _Delivered:
        """Return responses with the messages, their leases, their sizes and counts."""
        given = given_by(*place, popped.messages)
        handles = self._handles.receipts(
            [ReceiptHandle(*place, *one, one[4] == 0) for one in given.leases()]
        )
        responses, sizes, counts = [], [0, 0], [0, 0]
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
        return responses, given.packed, (sizes[0], sizes[1]), (counts[0], counts[1])
