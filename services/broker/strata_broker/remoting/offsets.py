"""Offsets of consumer groups and of queues."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.answers import VERSION, RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.position_resets import PositionResets
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.queue_ids import known_topic, public_queue, queue_number
from strata_broker.remoting.timestamps import put_ms
from strata_mq.access import Action
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode

_RESET = "Offset has been previously reset"
"""RocketMQ's remark at a position that is not stored."""


class RemotingOffsets:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics and queues.
        updates: know which positions are being stored.
        resets: that members have not taken up.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        updates: PositionUpdates,
        *,
        resets: PositionResets,
    ) -> None:
        self._face = face
        self._view = view
        self._updates = updates
        self._resets = resets

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
        topic, queue = self._place(exchange)
        self._resets.asked(exchange.client, group, topic.name, queue)
        asked = service_pb2.GetOffsetRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=public_queue(self._view, topic, queue),
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

        One from before a reset that the member has not taken up is not stored.

        Raises:
            RequestError: the topic or the group is refused, or storage refused.
        """
        request, client = exchange.request, exchange.client
        group, offset = request.text("consumerGroup"), request.number("commitOffset")
        topic, queue = self._place(exchange)
        place = (group, topic.name, queue)
        if self._resets.is_ignored(*place, offset):
            return request.answered(ResponseCode.SUCCESS, _RESET, version=VERSION)
        wanted = service_pb2.UpdateOffsetRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=public_queue(self._view, topic, queue),
            offset=offset,
        )
        caller, response_type = exchange.caller(group), service_pb2.UpdateOffsetResponse

        async def storing() -> None:
            # It may have waited for its turn, and a reset has begun meanwhile.
            if not self._resets.is_ignored(*place, offset):
                await self._face.call("UpdateOffset", wanted, response_type, caller)

        await self._updates.store(client, _key_of(exchange, group), storing)
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
        return public_queue(self._view, *self._place(exchange))

    def _place(self, exchange: Exchange) -> tuple[TopicRow, int]:
        request = exchange.request
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._view, request.text("topic"))
        return topic, queue_number(self._view, topic, request.number("queueId"))


def _key_of(exchange: Exchange, group: str) -> Hashable:
    """Return the queue and consumer group of a position, and whose right it is to store it."""
    request, principal = exchange.request, exchange.principal
    user = "" if principal is None else principal.user
    return user, group, request.text("topic"), request.number("queueId")
