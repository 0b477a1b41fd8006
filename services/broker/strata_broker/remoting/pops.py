"""POP_MESSAGE, ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: leases for remoting consumers.

A pop is a receive of the broker: with leases in storage, attempts and dead letters as for gRPC
consumers of the same group. Each message carries its receipt handle behind the words of RocketMQ's
extra info, which clients return as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import VERSION, RemotingRefusal, code_of, succeeded, text_of
from strata_broker.remoting.client_traces import region_of
from strata_broker.remoting.exchange import Exchange, Handler, RemotingPeer
from strata_broker.remoting.face import MessagingFace, PoppedAnswer
from strata_broker.remoting.face_calls import FacePop
from strata_broker.remoting.queue_ids import known_topic, queue_number, queue_numbers
from strata_broker.remoting.shown import ShownQueue, popped_message
from strata_mq.access import Action
from strata_mq.requests import Code, RequestError
from strata_remoting import (
    PopInfo,
    PoppedPlace,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Store,
    encode_message,
    encode_pop_info,
    handle_of_pop,
    message_offsets_text,
    start_offsets_text,
)
from strata_runtime.clock import Clock

_MOST_MESSAGES = 1 << 20
_MOST_MS = 1 << 53
_NO_MARK = 0
_NOTHING = "NO_MESSAGE_IN_QUEUE"


class _Popped(NamedTuple):
    """A pop as its answer shows it."""

    topic: TopicRow
    invisible_ms: int


class RemotingPops:
    """See the module docstring. Used on the event loop only.

    Args:
        face: the broker's handlers.
        view: knows topics, queues and consumer groups.
        clock: wall time.
        handles: reads the broker's own handles, and makes marks.
        store: returns the address that messages name as their store: of this broker.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        clock: Clock,
        *,
        handles: HandleSigner,
        store: Callable[[], Store],
    ) -> None:
        self._face = face
        self._handles = handles
        self._view = view
        self._clock = clock
        self._store = store
        self._waiting: dict[RemotingPeer, set[FacePop]] = {}

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible,
        }

    def disconnected(self, client: RemotingPeer) -> None:
        """End the pops of a connection that ended: they lease nothing any more."""
        for call in self._waiting.pop(client, ()):
            call.gone()

    async def pop(self, exchange: Exchange) -> None:
        """Answer with messages that the client has for a while, or with none.

        Raises:
            RemotingError: a field is missing, or is no number.
            RemotingRefusal: the queue does not exist, an ordered pop is not possible, or the
                request wants no answer.
            RequestError: the topic does not exist, or the pop failed unexpectedly.
        """
        request, client = exchange.request, exchange.client
        if request.is_oneway:
            # Its leases would last although nobody has their messages.
            raise RemotingRefusal(ResponseCode.MESSAGE_ILLEGAL, "a pop needs an answer")
        group, name = request.text("consumerGroup"), request.text("topic")
        exchange.require_group(group, Action.SUB)
        exchange.require_topic(name, Action.SUB)
        topic = known_topic(self._view, name)
        self._check_order(group, is_ordered=request.truth("order", default=False))
        queue_id = request.number("queueId")
        queue = ANY_QUEUE if queue_id < 0 else queue_number(self._view, topic, queue_id)
        invisible_ms = max(1, min(request.number("invisibleTime"), _MOST_MS))
        wait_ms = max(0, min(request.number("pollTime"), _MOST_MS))
        wanted = self._wanted(request, group, topic, queue, invisible_ms)
        call = FacePop(wanted.SerializeToString(), exchange.caller(group), queue, wait_ms=wait_ms)
        waiting = self._waiting.setdefault(client, set())
        waiting.add(call)
        try:
            deliver = partial(self._deliver, exchange, _Popped(topic, invisible_ms))
            await self._face.pop(call, deliver)
        finally:
            waiting.discard(call)
            if not waiting and self._waiting.get(client) is waiting:
                del self._waiting[client]

    async def ack(self, exchange: Exchange) -> RemotingCommand:
        """End the lease of a message that was processed.

        Raises:
            RemotingError: a field is missing, or is no number.
            RequestError: INVALID_RECEIPT_HANDLE, or storage refused.
        """
        request = exchange.request
        group = request.text("consumerGroup")
        entry = service_pb2.AckMessageEntry(
            message_id=request.text("offset"), receipt_handle=_handle_in(request)
        )
        asked = service_pb2.AckMessageRequest(
            group=definition_pb2.Resource(name=group),
            topic=definition_pb2.Resource(name=request.text("topic")),
            entries=[entry],
        )
        await self._face.ack(asked, exchange.caller(group))
        return succeeded(request)

    async def change_invisible(self, exchange: Exchange) -> RemotingCommand:
        """Set when a message is visible again; the answer has its new extra info as well.

        Raises:
            RemotingError: a field is missing, or is no number.
            RequestError: INVALID_RECEIPT_HANDLE, ILLEGAL_INVISIBLE_TIME, or storage refused.
        """
        request = exchange.request
        group, topic = request.text("consumerGroup"), request.text("topic")
        invisible_ms = max(0, min(request.number("invisibleTime"), _MOST_MS))
        asked = service_pb2.ChangeInvisibleDurationRequest(
            group=definition_pb2.Resource(name=group),
            topic=definition_pb2.Resource(name=topic),
            receipt_handle=_handle_in(request),
        )
        asked.invisible_duration.FromMilliseconds(invisible_ms)
        changed = await self._face.call(
            "ChangeInvisibleDuration",
            asked,
            service_pb2.ChangeInvisibleDurationResponse,
            exchange.caller(group),
        )
        place = PoppedPlace(
            broker_name_of(topic), request.number("queueId"), request.number("offset")
        )
        (info,) = self._infos((place,), (changed.receipt_handle,), invisible_ms)
        return succeeded(
            request,
            popTime=info.popped_ms,
            invisibleTime=invisible_ms,
            reviveQid=info.mark,
            extraInfo=encode_pop_info(info),
        )

    def _infos(
        self, places: Sequence[PoppedPlace], handles: Sequence[str], invisible_ms: int
    ) -> list[PopInfo]:
        """Return extra infos: the time in each is that at which storage began its lease."""
        found, now_ms = [], self._clock.wall_ms()
        read = self._handles.read_receipts(handles)
        for place, text, handle in zip(places, handles, read, strict=True):
            mark, popped_ms = _NO_MARK, now_ms
            if handle is not None and invisible_ms:
                popped_ms = handle.visible_at_ms - invisible_ms
                mark = self._handles.lease_mark(handle)
            found.append(PopInfo(place, popped_ms, invisible_ms, text, mark))
        return found

    def _check_order(self, group: str, *, is_ordered: bool) -> None:
        row = self._view.consumer_group("", group)
        if is_ordered and row is not None and not row.fifo:
            raise RemotingRefusal(
                ResponseCode.NO_PERMISSION,
                f"consumer group {group} is not ordered: an ordered pop needs a group with "
                "consumeMessageOrderly (strata group update --fifo)",
            )

    def _wanted(
        self,
        request: RemotingCommand,
        group: str,
        topic: TopicRow,
        queue: int,
        invisible_ms: int,
    ) -> service_pb2.ReceiveMessageRequest:
        homes = self._view.homes(topic)
        if not homes:
            raise RemotingRefusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"topic {topic.name} is not served now"
            )
        home = next((each for each in homes if queue in each.queues), homes[0])
        is_sql = request.text("expType", "TAG") == "SQL92"
        wanted = service_pb2.ReceiveMessageRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=definition_pb2.MessageQueue(
                topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
                broker=definition_pb2.Broker(name=home.broker_name),
            ),
            filter_expression=definition_pb2.FilterExpression(
                type=definition_pb2.SQL if is_sql else definition_pb2.TAG,
                expression=request.text("exp", "*") or "*",
            ),
            batch_size=max(1, min(request.number("maxMsgNums"), _MOST_MESSAGES)),
            attempt_id=request.text("attemptId", ""),
        )
        wanted.invisible_duration.FromMilliseconds(invisible_ms)
        return wanted

    async def _deliver(self, exchange: Exchange, popped: _Popped, answer: PoppedAnswer) -> None:
        await exchange.answer(self._answer(exchange.request, popped, answer))

    def _answer(
        self, request: RemotingCommand, popped: _Popped, answer: PoppedAnswer
    ) -> RemotingCommand:
        failure = answer.failure
        if failure is not None and failure.code is not Code.TOO_MANY_REQUESTS:
            return request.answered(code_of(failure.code), text_of(failure), version=VERSION)
        now_ms, topic = self._clock.wall_ms(), popped.topic
        fields = {
            "popTime": str(now_ms),
            "invisibleTime": str(popped.invisible_ms),
            "reviveQid": str(_NO_MARK),
            "restNum": "0",
        }
        if failure is not None:
            # Clients pause; any other code is an error to them.
            return request.answered(
                ResponseCode.POLLING_FULL, _NOTHING, fields=fields, version=VERSION
            )
        if not answer.messages:
            return request.answered(
                ResponseCode.POLLING_TIMEOUT, "no new message", fields=fields, version=VERSION
            )
        places = self._places_of(topic, answer.messages)
        handles = [message.system_properties.receipt_handle for message in answer.messages]
        infos = self._infos(places, handles, popped.invisible_ms)
        offsets = defaultdict[int, list[int]](list)
        body, store, region = [], self._store(), region_of(self._view)
        for message, info in zip(answer.messages, infos, strict=True):
            queue_id = info.place.queue_id
            offsets[queue_id].append(info.place.offset)
            shown = ShownQueue(topic, message.system_properties.queue_id, queue_id)
            body.append(
                encode_message(popped_message(message, shown, store, encode_pop_info(info), region))
            )
        in_order = {queue: sorted(own) for queue, own in offsets.items()}
        fields["startOffsetInfo"] = start_offsets_text(
            {queue: own[0] for queue, own in in_order.items()}
        )
        fields["msgOffsetInfo"] = message_offsets_text(in_order)
        return request.answered(
            ResponseCode.SUCCESS, "FOUND", fields=fields, body=b"".join(body), version=VERSION
        )

    def _places_of(
        self, topic: TopicRow, messages: Sequence[definition_pb2.Message]
    ) -> Sequence[PoppedPlace]:
        numbers, name = queue_numbers(self._view, topic), broker_name_of(topic.name)
        ids = {queue: queue_id for queue_id, queue in enumerate(numbers)}
        systems = [message.system_properties for message in messages]
        return [
            PoppedPlace(name, ids.get(system.queue_id, 0), system.queue_offset)
            for system in systems
        ]


def _handle_in(request: RemotingCommand) -> str:
    """Return the receipt handle in the extra info of a request.

    Raises:
        RequestError: INVALID_RECEIPT_HANDLE: there is none.
    """
    handle = handle_of_pop(request.text("extraInfo"))
    if not handle:
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    return handle
