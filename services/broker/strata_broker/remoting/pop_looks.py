"""NOTIFICATION and PEEK_MESSAGE: what a consumer group could pop, without leases.

A notification says whether something can be popped, and waits for it. It looks at a bounded pace,
and one that is too many is answered at once and says so, as with RocketMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.receives.consumer_states import ConsumerStates
from strata_broker.remoting.answers import VERSION, RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace, PulledAnswer
from strata_broker.remoting.queue_ids import (
    known_topic,
    public_queue,
    queue_number,
    queue_numbers,
)
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_mq.access import Action
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Store, encode_message
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_MOST_MESSAGES = 1 << 20
_MOST_MS = 1 << 53


class _Wanted(NamedTuple):
    """The subject of a request."""

    group: meta_pb2.ConsumerGroup
    topic: TopicRow
    queue: int


class RemotingPopLooks:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics, queues and consumer groups.
        states: of consumer groups.
        config: limits of notifications, of waits and of answers.
        metrics: show how many wait.
        store: returns the address that messages name as their store: of this broker.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        states: ConsumerStates,
        *,
        config: BrokerConfig,
        metrics: Metrics,
        store: Callable[[], Store],
    ) -> None:
        self._face = face
        self._view = view
        self._states = states
        self._store = store
        self._max_wait_ms = config.limits().max_polling_ms
        self._check_s = config.remoting.notification_check_ms / 1000
        self._most_messages, self._most_bytes = config.pull.max_messages, config.pull.max_bytes
        self._limit = Limit(
            "remoting notifications",
            config.remoting.max_notifications,
            "requests",
            metrics=metrics,
        )
        self._ending = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Number of notifications that wait."""
        return self._limit.used

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.NOTIFICATION: self.notify, RequestCode.PEEK_MESSAGE: self.peek}

    def end_all(self) -> None:
        """Answer every notification that waits: the broker stops."""
        self._ending.set()

    async def notify(self, exchange: Exchange) -> RemotingCommand:
        """Answer whether something can be popped, as soon as there is something.

        Raises:
            RemotingError: a field is missing, or is no number.
            RemotingRefusal: the queue or the consumer group does not exist.
            RequestError: the topic does not exist, the client may not use it, or storage refused.
            ConnectionError: the client is gone.
        """
        request = exchange.request
        wanted = self._wanted(exchange)
        wait_ms = min(max(0, min(request.number("pollTime"), _MOST_MS)), self._max_wait_ms)
        found, is_full = await self._is_deliverable(wanted), False
        if not found and wait_ms:
            is_full = not self._limit.try_take()
            if not is_full:
                try:
                    found = await self._wait(exchange, wanted, wait_ms / 1000)
                finally:
                    self._limit.give_back()
        return succeeded(request, hasMsg=_shown(found), pollingFull=_shown(is_full))

    async def peek(self, exchange: Exchange) -> RemotingCommand:
        """Answer with messages that the consumer group was never given, and lease none.

        Raises:
            RemotingError, RemotingRefusal, RequestError: see `notify`.
        """
        request = exchange.request
        wanted = self._wanted(exchange)
        most = max(1, min(request.number("maxMsgNums"), self._most_messages, _MOST_MESSAGES))
        body, count, size_bytes, rest = [], 0, 0, 0
        store = self._store()
        ids = {number: at for at, number in enumerate(queue_numbers(self._view, wanted.topic))}
        for state in await self._states_of(wanted):
            new = state.next_offset - _head_of(state)
            rest += new
            if not new or count >= most or size_bytes >= self._most_bytes:
                continue
            shown = ShownQueue(wanted.topic, state.queue, ids.get(state.queue, 0))
            for one in await self._read(exchange, wanted, state, most - count):
                body.append(encode_message(pulled_message(one, shown, store)))
                count, size_bytes = count + 1, size_bytes + len(one.body)
        fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        code, text = ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"
        if count:
            code, text = ResponseCode.SUCCESS, "FOUND"
        return request.answered(code, text, fields=fields, body=b"".join(body), version=VERSION)

    def _wanted(self, exchange: Exchange) -> _Wanted:
        request = exchange.request
        name, queue_id = request.text("consumerGroup"), request.number("queueId")
        exchange.require_group(name, Action.SUB)
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._view, request.text("topic"))
        queue = ANY_QUEUE if queue_id < 0 else queue_number(self._view, topic, queue_id)
        group = self._view.consumer_group("", name)
        if group is None:
            raise RemotingRefusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist: pop once, or create it",
            )
        return _Wanted(group, topic, queue)

    async def _states_of(self, wanted: _Wanted) -> list[storage_pb2.ConsumerQueueState]:
        group, topic, queue = wanted
        if queue == ANY_QUEUE:
            return await self._states.of_topic(group, topic)
        return await self._states.of_queue(group, topic, queue)

    async def _is_deliverable(self, wanted: _Wanted) -> bool:
        """Whether some message is new to the group, or waits to be delivered again.

        A message of an ordered group may still have to wait for an earlier one: then a pop waits.
        """
        return any(
            state.waiting or _head_of(state) < state.next_offset
            for state in await self._states_of(wanted)
        )

    async def _wait(self, exchange: Exchange, wanted: _Wanted, wait_s: float) -> bool:
        """Look again and again; False: the time is over, or the broker stops."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        while (left_s := ends_s - loop.time()) > 0 and not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, self._check_s)):
                    await self._ending.wait()
            if exchange.client.is_gone:
                raise ConnectionResetError("the client is gone")
            if await self._is_deliverable(wanted):
                return True
        return False

    async def _read(
        self,
        exchange: Exchange,
        wanted: _Wanted,
        state: storage_pb2.ConsumerQueueState,
        most: int,
    ) -> list[definition_pb2.Message]:
        """Read messages of a queue that the group was never given."""
        group, found = wanted.group.name, list[definition_pb2.Message]()

        async def keep(answer: PulledAnswer) -> None:
            if answer.failure is not None:
                raise answer.failure
            found.extend(answer.messages)

        call = service_pb2.PullMessageRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=public_queue(self._view, wanted.topic, state.queue),
            offset=_head_of(state),
            batch_size=most,
        )
        await self._face.pull(call, exchange.caller(group), keep)
        return found


def _head_of(state: storage_pb2.ConsumerQueueState) -> int:
    """Return the first offset that the group was never given.

    A group without a position has been given nothing: it begins at the first message, also where
    its first pop would begin later.
    """
    return max(state.head, state.min_offset) if state.started else state.min_offset


def _shown(value: bool) -> str:
    return "true" if value else "false"
