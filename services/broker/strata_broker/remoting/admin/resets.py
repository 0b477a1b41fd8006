"""Moving the positions of consumer groups: to a time, an offset or those of another group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.admin.v1 import admin_pb2
from strata_broker.access.rules import KNOWN_BY
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting.admin.bodies import object_keyed, shown_queue, with_object_keys
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.queue_ids import queue_number
from strata_mq.access import Action
from strata_remoting import AdminCode, RemotingCommand, ResponseCode

_NO_OFFSET = -1
_LATEST_MS = -1
_MOST_MS = 1 << 53


class AdminResets:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics and queues.
    """

    def __init__(self, face: OperatorFace, places: AdminPlaces) -> None:
        self._face = face
        self._places = places

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            AdminCode.CLONE_GROUP_OFFSET: self.clone,
        }

    async def reset(self, exchange: Exchange) -> RemotingCommand:
        """Move a consumer group on a topic to a time or an offset; answer with the new offsets.

        A reset that is not forced moves no queue forward.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the topic, group or queue does not exist, or the call was refused.
        """
        request = exchange.request
        group, name = request.text("group"), request.text("topic")
        exchange.require_group(group, Action.UPDATE)
        exchange.require_topic(name, *KNOWN_BY)
        topic = self._topic(name)
        target = admin_pb2.ResetConsumerGroupRequest(name=group, topic=name)
        queue_id = request.number("queueId", -1)
        if queue_id >= 0:
            target.queues.append(queue_number(self._places.view, topic, queue_id))
        offset, time_ms = request.number("offset", _NO_OFFSET), request.number("timestamp", 0)
        is_forced = request.truth("isForce", default=True)
        if offset != _NO_OFFSET and queue_id >= 0:
            target.offset, is_forced = max(offset, 0), True
        elif time_ms == _LATEST_MS:
            target.latest = True
        else:
            target.time_ms = max(0, min(time_ms, _MOST_MS))
        if is_forced:
            lags = await self._reset(exchange, target)
        else:
            lags = await self._move_back(exchange, target)
        view = self._places.view
        offsets: dict[str, Any] = {
            "offsetTable": object_keyed(
                (shown_queue(view, topic, lag.queue), lag.cursor) for lag in lags
            )
        }
        return with_object_keys(request, offsets)

    async def clone(self, exchange: Exchange) -> RemotingCommand:
        """Give a consumer group the positions of another one.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: a group or topic does not exist, or the call was refused.
        """
        request = exchange.request
        source, wanted = request.text("srcGroup"), request.text("topic", "")
        copy = request.text("destGroup")
        exchange.require_group(copy, Action.UPDATE)
        found = await self._face.consumer_group(source, exchange.caller())
        lags = [lag for lag in found.queues if wanted in ("", lag.topic)]
        # All or nothing: the copy would else have a part of the positions.
        for topic in sorted({lag.topic for lag in lags}):
            exchange.require_topic(topic, *KNOWN_BY)
        for lag in lags:
            if self._places.topic(lag.topic) is not None:
                target = admin_pb2.ResetConsumerGroupRequest(
                    name=copy, topic=lag.topic, offset=lag.cursor, queues=[lag.queue]
                )
                await self._reset(exchange, target)
        return succeeded(request)

    async def _move_back(
        self, exchange: Exchange, target: admin_pb2.ResetConsumerGroupRequest
    ) -> list[admin_pb2.ConsumerQueueLag]:
        """Move the queues whose target is behind the group's position; return their progress."""
        found = await self._face.consumer_group(target.name, exchange.caller())
        wanted = {} if target.latest else await self._offsets(exchange, target)
        moved = []
        for lag in found.queues:
            if lag.topic != target.topic or wanted.get(lag.queue, lag.cursor) >= lag.cursor:
                continue
            if target.queues and lag.queue not in target.queues:
                continue
            back = admin_pb2.ResetConsumerGroupRequest(
                name=target.name,
                topic=target.topic,
                offset=wanted[lag.queue],
                queues=[lag.queue],
            )
            moved += await self._reset(exchange, back)
        return moved

    async def _offsets(
        self, exchange: Exchange, target: admin_pb2.ResetConsumerGroupRequest
    ) -> dict[int, int]:
        """Return the first offset of each queue that was stored since the target's time.

        A queue that moved has a span for each raft group; those without such a message tell
        nothing.
        """
        answer = await self._face.call(
            "ListQueueSpans",
            admin_pb2.ListQueueSpansRequest(topic=target.topic, begin_ms=target.time_ms),
            admin_pb2.ListQueueSpansResponse,
            exchange.caller(),
            missing=ResponseCode.TOPIC_NOT_EXIST,
        )
        firsts: dict[int, int] = {}
        for span in answer.spans:
            if span.first_offset == span.end_offset:
                continue
            known = firsts.get(span.queue, span.first_offset)
            firsts[span.queue] = min(known, span.first_offset)
        return firsts

    async def _reset(
        self, exchange: Exchange, target: admin_pb2.ResetConsumerGroupRequest
    ) -> list[admin_pb2.ConsumerQueueLag]:
        answer = await self._face.call(
            "ResetConsumerGroup",
            target,
            admin_pb2.ResetConsumerGroupResponse,
            exchange.caller(),
            missing=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
        return list(answer.queues)

    def _topic(self, name: str) -> TopicRow:
        topic = self._places.topic(name)
        if topic is None:
            raise RemotingRefusal(ResponseCode.TOPIC_NOT_EXIST, f"The topic {name} does not exist")
        return topic
