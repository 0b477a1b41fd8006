"""BATCH_ACK_MESSAGE: ends the leases of messages that a request names by numbers, without handles.

A batch ack returns numbers of the extra info. The time of the pop and the invisible time together
are the end of the lease, and storage finds the lease by its end. The mark in the place of a revive
queue says that a broker gave these numbers. From here on the acks are those of any client: of
handles that this broker makes, with lease number 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.answers import VERSION, RemotingRefusal, code_of, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.json_bodies import objects_in, read_object
from strata_broker.remoting.queue_ids import known_topic, queue_numbers
from strata_broker.storage_client.epochs import holder_of
from strata_mq.access import Action
from strata_mq.requests import Code, ReceiptHandle
from strata_remoting import (
    BatchAck,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    read_batch_ack,
)

_MOST_OFFSET = (1 << 63) - 1


class RemotingBatchAcks:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics, queues and consumer groups.
        handles: signs and knows marks.
        max_entries: messages of one request.
        max_json_bytes: of the body of a request.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        handles: HandleSigner,
        *,
        max_entries: int,
        max_json_bytes: int,
    ) -> None:
        self._face = face
        self._view = view
        self._handles = handles
        self._max_entries = max_entries
        self._max_json_bytes = max_json_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.BATCH_ACK_MESSAGE: self.ack}

    async def ack(self, exchange: Exchange) -> RemotingCommand:
        """Ack what can be acked; success if that is all.

        Raises:
            RemotingError: the body cannot be read.
            RemotingRefusal: too many messages, or some leases have ended or never were; the
                other messages are acked.
            RequestError: the topic does not exist, the client may not ack, or storage refused.
        """
        wanted = self._read(exchange.request.body)
        if not wanted:
            return exchange.request.answered(ResponseCode.NO_MESSAGE, version=VERSION)
        places: dict[tuple[str, str], list[str]] = defaultdict(list)
        count = lost = 0
        for one in wanted:
            exchange.require_group(one.group, Action.SUB)
            exchange.require_topic(one.topic, Action.SUB)
            handles = self._handles_of(one)
            count += one.message_count
            lost += one.message_count - len(handles)
            places[one.group, one.topic] += handles
        codes = [
            code
            for (group, topic), handles in places.items()
            for code in await self._ack(exchange, group, topic, handles)
        ]
        bad = [code for code in codes if code != Code.OK]
        if lost or bad:
            # A trouble of storage passes; a lease that has ended does not come back.
            passing = (code for code in bad if code != Code.INVALID_RECEIPT_HANDLE)
            raise RemotingRefusal(
                code_of(Code(next(passing, Code.INVALID_RECEIPT_HANDLE))),
                f"{lost + len(bad)} of {count} messages are not acked",
            )
        return succeeded(exchange.request)

    def _read(self, body: bytes) -> Sequence[BatchAck]:
        if not body:
            return ()
        data = read_object(body, self._max_json_bytes)
        found = [read_batch_ack(one) for one in objects_in(data, "acks")]
        count = sum(one.message_count for one in found)
        if max(count, len(found)) > self._max_entries:
            raise RemotingError(
                f"a batch ack has {count} messages in {len(found)} parts; "
                f"{self._max_entries} are allowed (ack.max_entries)"
            )
        return found

    def _handles_of(self, one: BatchAck) -> list[str]:
        """Return handles of the messages that this broker can believe the client got."""
        topic, group = known_topic(self._view, one.topic), self._view.consumer_group("", one.group)
        numbers = queue_numbers(self._view, topic)
        if group is None or one.is_retry or one.queue_id >= len(numbers):
            return []
        queue, visible_at_ms = numbers[one.queue_id], one.popped_ms + one.invisible_ms
        found = []
        for offset in one.offsets():
            if max(offset, visible_at_ms) > _MOST_OFFSET:
                continue
            for raft_group in holder_of(self._view, topic, queue, offset):
                handle = ReceiptHandle(
                    raft_group,
                    group.consumer_group_id,
                    topic.topic_id,
                    queue,
                    offset,
                    0,
                    0,
                    visible_at_ms,
                )
                if self._handles.is_lease_mark(handle, one.mark):
                    found.append(handle)
        return list(self._handles.receipts(found))

    async def _ack(
        self, exchange: Exchange, group: str, topic: str, handles: Sequence[str]
    ) -> list[int]:
        """Ack messages of one consumer group and topic; return a code for each."""
        asked = service_pb2.AckMessageRequest(
            group=definition_pb2.Resource(name=group),
            topic=definition_pb2.Resource(name=topic),
            entries=[service_pb2.AckMessageEntry(receipt_handle=handle) for handle in handles],
        )
        return await self._face.ack_each(asked, exchange.caller(group))
