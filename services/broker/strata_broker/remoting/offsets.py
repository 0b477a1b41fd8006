"""Offsets of consumer groups and of queues."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.queue_ids import known_topic, public_queue, queue_number
from strata_broker.remoting.timestamps import put_ms
from strata_mq.access import Action
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode


class RemotingOffsets:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics and queues.
        updates: know which positions are being stored.
    """

    def __init__(self, face: MessagingFace, view: MetadataView, updates: PositionUpdates) -> None:
        self._face = face
        self._view = view
        self._updates = updates

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self.end,
            RequestCode.GET_MIN_OFFSET: self.beginning,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
        }

    async def query(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offset that a consumer group stored for a queue.

        A group without an offset starts at 0 while the queue still has its first message, as with
        RocketMQ; afterwards its consumers are told that there is none, and decide.

        Raises:
            RemotingRefusal: QUERY_NOT_FOUND.
            RequestError: TOPIC_NOT_FOUND, or storage refused.
        """
        request = exchange.request
        group = request.text("consumerGroup")
        asked = service_pb2.GetOffsetRequest(
            group=definition_pb2.Resource(name=group), message_queue=self._queue(exchange)
        )
        try:
            found = await self._face.call(
                "GetOffset", asked, service_pb2.GetOffsetResponse, exchange.caller(group)
            )
        except RequestError as bad:
            if bad.code is not Code.OFFSET_NOT_FOUND:
                raise
        else:
            return succeeded(request, offset=found.offset)
        if request.truth("setZeroIfNotFound", default=True):
            first = await self._offset(exchange, definition_pb2.BEGINNING)
            if first == 0:
                return succeeded(request, offset=0)
        raise RemotingRefusal(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )

    async def update(self, exchange: Exchange) -> RemotingCommand:
        """Store the offset of a consumer group for a queue.

        Raises:
            RequestError: the topic or the group is refused, or storage refused.
        """
        request = exchange.request
        group = request.text("consumerGroup")
        wanted = service_pb2.UpdateOffsetRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=self._queue(exchange),
            offset=request.number("commitOffset"),
        )
        call = self._face.call
        storing = partial(
            call, "UpdateOffset", wanted, service_pb2.UpdateOffsetResponse, exchange.caller(group)
        )
        await self._updates.store(exchange.client, _key_of(exchange, group), storing)
        return succeeded(request)

    async def end(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offset behind the last message of a queue."""
        return succeeded(exchange.request, offset=await self._offset(exchange, definition_pb2.END))

    async def beginning(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offset of the first message of a queue."""
        return succeeded(
            exchange.request, offset=await self._offset(exchange, definition_pb2.BEGINNING)
        )

    async def by_time(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offset of the first message since a time."""
        return succeeded(
            exchange.request, offset=await self._offset(exchange, definition_pb2.TIMESTAMP)
        )

    async def _offset(
        self, exchange: Exchange, policy: definition_pb2.QueryOffsetPolicy.ValueType
    ) -> int:
        asked = service_pb2.QueryOffsetRequest(
            message_queue=self._queue(exchange), query_offset_policy=policy
        )
        if policy == definition_pb2.TIMESTAMP:
            put_ms(asked.timestamp, exchange.request.number("timestamp"))
        found = await self._face.call(
            "QueryOffset", asked, service_pb2.QueryOffsetResponse, exchange.caller()
        )
        return found.offset

    def _queue(self, exchange: Exchange) -> definition_pb2.MessageQueue:
        request = exchange.request
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._view, request.text("topic"))
        queue = queue_number(self._view, topic, request.number("queueId"))
        return public_queue(self._view, topic, queue)


def _key_of(exchange: Exchange, group: str) -> Hashable:
    """Return the queue and consumer group of a position, and whose right it is to store it."""
    request, principal = exchange.request, exchange.principal
    user = "" if principal is None else principal.user
    return user, group, request.text("topic"), request.number("queueId")
