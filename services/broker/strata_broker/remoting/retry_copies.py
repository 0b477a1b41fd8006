"""Stores copies of messages in the topic of a consumer group's retries, each once.

A repeat of a request finds the copy that the first one stored, by its id. But a message may fail
again as the same attempt: its consumer group was moved back, and it was read anew. The copy of the
time before is consumed then, and nothing brings it again, so the message needs another one. The
position of the consumer group tells these apart: a copy below it is consumed.
"""

from __future__ import annotations

from collections.abc import Callable

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.base import errors
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.queue_ids import public_queue
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_mq.layout import PartKind
from strata_mq.requests import Code, HandleForm, RequestError

_RETRY_QUEUE = 0
# Offset of a copy that is in no queue any more.
_GONE = -1
# Copies of one attempt whose ids are still known: one for each time that the group was moved back.
_MOST_COPIES = 16


class RetryCopies:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows queues.
        handles: tell where a copy waits.
        earlier: finds copies that do not wait any more.
        timeout_s: time to find one.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        *,
        handles: HandleSigner,
        earlier: EarlierSends,
        timeout_s: float,
    ) -> None:
        self._face = face
        self._view = view
        self._handles = handles
        self._earlier = earlier
        self._timeout_s = timeout_s

    async def store(
        self,
        exchange: Exchange,
        group: str,
        retries: TopicRow,
        copy: definition_pb2.Message,
        id_of: Callable[[int], str],
    ) -> None:
        """Store a copy, unless it is stored and not consumed yet.

        Args:
            exchange: of the consumer.
            group: its consumer group.
            retries: the topic of its retries.
            copy: with a delivery time; gets its topic and its id.
            id_of: the id by the number of copies that are consumed, always the same.

        Raises:
            RequestError: refused; or it is not known what became of a copy.
        """
        copy.topic.name = retries.name
        request = service_pb2.SendMessageRequest(messages=[copy])
        for number in range(_MOST_COPIES):
            request.messages[0].system_properties.message_id = id_of(number)
            stored = await self._face.send(request, exchange.caller(group), _RETRY_QUEUE)
            offset = await self._offset_of(retries, id_of(number), stored.entries[0])
            if not await self._is_consumed(exchange, group, retries, offset):
                return
        raise RequestError(
            Code.TOO_MANY_REQUESTS,
            f"the message was sent back {_MOST_COPIES} times by consumers that read it anew; "
            "try again later",
        )

    async def _offset_of(
        self, retries: TopicRow, message_id: str, stored: service_pb2.SendResultEntry
    ) -> int | None:
        """Return the offset of a copy that was stored before; None: it waits, as new ones do.

        `_GONE`: it neither waits nor has an offset.

        Raises:
            RequestError: TOO_MANY_REQUESTS; the raft group of the copy did not answer.
        """
        if not stored.recall_handle:
            return stored.offset
        handle = self._handles.read_pending(stored.recall_handle)
        if handle.form is HandleForm.STORED:
            return handle.number
        # Storage names a copy by its entry for as long as it remembers the id, delivered or not.
        if not self._earlier.try_begin(1):
            raise errors.too_many_requests()
        try:
            found = await self._earlier.look(
                handle.raft_group, retries, message_id, PartKind.DELAYED, self._timeout_s
            )
        finally:
            self._earlier.end(1)
        if found is None:
            return _GONE
        return found.offset if found.place is None else None

    async def _is_consumed(
        self, exchange: Exchange, group: str, retries: TopicRow, offset: int | None
    ) -> bool:
        if offset is None:
            return False
        if offset == _GONE:
            return True
        asked = service_pb2.GetOffsetRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=public_queue(self._view, retries, _RETRY_QUEUE),
        )
        try:
            position = await self._face.call(
                "GetOffset", asked, service_pb2.GetOffsetResponse, exchange.caller(group)
            )
        except RequestError as bad:
            if bad.code is Code.OFFSET_NOT_FOUND:
                return False
            raise
        return position.offset > offset
