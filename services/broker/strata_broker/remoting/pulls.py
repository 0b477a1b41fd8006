"""PULL_MESSAGE: reading a queue from an offset on, with a wait at its end.

A position that a pull carries along is not stored: clients also send it by itself every few seconds
and when they stop (UPDATE_CONSUMER_OFFSET), and each stored position is a raft entry. The pulls of
a connection end with it: nobody would read their answers, and the next connection of the client
has the same share of pulls that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.answers import VERSION, RemotingRefusal, code_of, text_of
from strata_broker.remoting.client_traces import region_of
from strata_broker.remoting.exchange import Exchange, Handler, RemotingPeer
from strata_broker.remoting.face import MessagingFace, PulledAnswer
from strata_broker.remoting.heartbeats import RemotingSubscription
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.position_resets import PositionResets
from strata_broker.remoting.queue_ids import known_topic, public_queue, queue_number
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_mq.access import Action
from strata_mq.requests import Code
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Store, encode_message

_SUSPEND, _HAS_SUBSCRIPTION, _CLASS_FILTER = 1 << 1, 1 << 2, 1 << 3
_MOST_MESSAGES = 1 << 20


class _PulledQueue(NamedTuple):
    """The queue that a pull reads."""

    place: ShownQueue
    offset: int


class RemotingPulls:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics and queues.
        members: know the subscriptions that heartbeats told of.
        resets: that members have not taken up.
        store: returns the address that messages name as their store: of this broker.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        members: RemotingMembers,
        *,
        resets: PositionResets,
        store: Callable[[], Store],
    ) -> None:
        self._face = face
        self._view = view
        self._members = members
        self._resets = resets
        self._store = store
        self._waiting: dict[RemotingPeer, set[asyncio.Task[None]]] = {}

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def disconnected(self, client: RemotingPeer) -> None:
        """End the pulls of a connection that ended."""
        for task in self._waiting.pop(client, ()):
            task.cancel()

    async def pull(self, exchange: Exchange) -> None:
        """Answer with messages, or with what a consumer is to do instead.

        Raises:
            RemotingError: a field is missing, or is no number.
            RemotingRefusal: the topic, queue or subscription does not exist.
            RequestError: the client may not pull, or the pull failed unexpectedly.
            ConnectionError: the client is gone.
        """
        request = exchange.request
        group, flags = request.text("consumerGroup"), request.number("sysFlag")
        exchange.require_group(group, Action.SUB)
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._view, request.text("topic"))
        queue_id = request.number("queueId")
        queue = queue_number(self._view, topic, queue_id)
        offset = request.number("queueOffset")
        wanted = self._subscription(exchange, group, topic.name, flags)
        moved_to = self._resets.moved_to(group, topic.name, queue, offset)
        if moved_to is not None:
            await exchange.answer(_moved(request, moved_to))
            return
        call = service_pb2.PullMessageRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=public_queue(self._view, topic, queue),
            offset=offset,
            batch_size=max(1, min(request.number("maxMsgNums"), _MOST_MESSAGES)),
            filter_expression=definition_pb2.FilterExpression(
                type=definition_pb2.SQL if wanted.is_sql else definition_pb2.TAG,
                expression=wanted.expression,
            ),
        )
        if flags & _SUSPEND:
            wait_ms = max(0, min(request.number("suspendTimeoutMillis", 0), _MOST_MESSAGES))
            call.long_polling_timeout.FromMilliseconds(wait_ms)
        deliver = partial(
            self._deliver, exchange, _PulledQueue(ShownQueue(topic, queue, queue_id), offset)
        )
        with self._ending_with(exchange.client):
            await self._face.pull(call, exchange.caller(group), deliver)

    @contextmanager
    def _ending_with(self, client: RemotingPeer) -> Iterator[None]:
        """Let the task of a pull be cancelled when its connection ends.

        Raises:
            ConnectionError: it has ended.
        """
        if client.is_gone:
            raise ConnectionResetError("the client is gone")
        task = asyncio.current_task()
        assert task is not None, "a request has a task"
        waiting = self._waiting.setdefault(client, set())
        waiting.add(task)
        try:
            yield
        finally:
            waiting.discard(task)
            if not waiting and self._waiting.get(client) is waiting:
                del self._waiting[client]

    def _subscription(
        self, exchange: Exchange, group: str, topic: str, flags: int
    ) -> RemotingSubscription:
        request = exchange.request
        if flags & _HAS_SUBSCRIPTION:
            found: RemotingSubscription | None = RemotingSubscription(
                request.text("subscription", "*") or "*",
                request.text("expressionType", "TAG") == "SQL92",
                bool(flags & _CLASS_FILTER),
            )
        else:
            found = self._members.subscription(exchange.client.client_id, group, topic)
        if found is None:
            raise RemotingRefusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.is_class:
            raise RemotingRefusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "filters by a Java class are not supported: use tags or SQL92",
            )
        return found

    async def _deliver(
        self, exchange: Exchange, pulled: _PulledQueue, answer: PulledAnswer
    ) -> None:
        await exchange.answer(self._answer(exchange.request, pulled, answer))

    def _answer(
        self, request: RemotingCommand, pulled: _PulledQueue, answer: PulledAnswer
    ) -> RemotingCommand:
        failure = answer.failure
        if failure is not None and failure.code is not Code.ILLEGAL_OFFSET:
            return request.answered(code_of(failure.code), text_of(failure), version=VERSION)
        offset = pulled.offset
        next_offset = offset if answer.next_offset is None else answer.next_offset
        window = answer.window or (0, next_offset)
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(window[0]),
            "maxOffset": str(max(window[1], next_offset)),
        }
        if failure is not None:
            code, text = ResponseCode.PULL_OFFSET_MOVED, text_of(failure)
        elif answer.messages:
            code, text = ResponseCode.SUCCESS, "FOUND"
        elif next_offset > offset:
            code, text = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        else:
            code, text = ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"
        store, place, region = self._store(), pulled.place, region_of(self._view)
        body = b"".join(
            encode_message(pulled_message(message, place, store, region))
            for message in answer.messages
        )
        return request.answered(code, text, fields=fields, body=body, version=VERSION)


def _moved(request: RemotingCommand, offset: int) -> RemotingCommand:
    """Return the answer to a member that has to go on from elsewhere; all clients obey it."""
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(offset),
        "minOffset": "0",
        "maxOffset": str(offset),
    }
    code, text = ResponseCode.PULL_OFFSET_MOVED, "the position of the consumer group was reset"
    return request.answered(code, text, fields=fields, version=VERSION)
