"""NOTIFICATION and PEEK_MESSAGE: what a consumer group could pop, without leases.

A notification says whether something can be popped, and waits for it, woken as receives are. One
that is too many, of all or of its client, connection or address, is answered at once and says so,
as with RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.base.shares import Owner, OwnerShares, all_owners_of, most_each
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.receives.deliverable import DeliverableLooks, PopSubject, head_of
from strata_broker.remoting.answers import VERSION, RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler, RemotingPeer
from strata_broker.remoting.face import MessagingFace, PulledAnswer
from strata_broker.remoting.queue_ids import (
    known_topic,
    public_queue,
    queue_number,
    queue_numbers,
)
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_broker.storage_client.pop_ends import PopTicket
from strata_mq.access import Action
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Store, encode_message
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_MOST_MESSAGES = 1 << 20
_MOST_MS = 1 << 53
# The number of a ticket: no pop is under way, so that no storage node has to end one.
_NO_NUMBER = 0


class RemotingPopLooks:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics, queues and consumer groups.
        looks: of what can be popped.
        config: limits of notifications, of waits and of answers.
        metrics: show how many wait.
        store: returns the address that messages name as their store: of this broker.
    """

    def __init__(
        self,
        face: MessagingFace,
        view: MetadataView,
        looks: DeliverableLooks,
        *,
        config: BrokerConfig,
        metrics: Metrics,
        store: Callable[[], Store],
    ) -> None:
        self._face = face
        self._view = view
        self._looks = looks
        self._store = store
        self._max_wait_ms = config.limits().max_polling_ms
        self._most_messages, self._most_bytes = config.pull.max_messages, config.pull.max_bytes
        section, of = config.remoting, "remoting notifications"
        self._limit = Limit(of, section.max_notifications, "requests", metrics=metrics)
        most = most_each(
            section.max_notifications_per_client, section.max_notifications_per_address
        )
        self._shares = OwnerShares(of, most, metrics)
        self._waiting: dict[RemotingPeer, set[PopTicket]] = {}
        self._is_ending = False

    @property
    def waiting(self) -> int:
        """Number of notifications that wait."""
        return self._limit.used

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.NOTIFICATION: self.notify, RequestCode.PEEK_MESSAGE: self.peek}

    def end_all(self) -> None:
        """Answer every notification that waits, and let no more wait: the broker stops."""
        self._is_ending = True
        for tickets in self._waiting.values():
            for ticket in tickets:
                ticket.end()

    def disconnected(self, client: RemotingPeer) -> None:
        """End the notifications of a connection that ended."""
        for ticket in self._waiting.pop(client, ()):
            ticket.end()

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
        found, is_full = await self._looks.is_deliverable(wanted), False
        if not found and wait_ms and not self._is_ending:
            owners = all_owners_of(exchange.client.client_id, exchange.client.peer)
            is_full = not self._try_take(owners)
            if not is_full:
                try:
                    found = await self._wait(exchange.client, wanted, wait_ms / 1000)
                finally:
                    self._limit.give_back()
                    self._shares.give_back(owners)
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
        for state in await self._looks.states(wanted):
            new = state.next_offset - head_of(state)
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

    def _wanted(self, exchange: Exchange) -> PopSubject:
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
        return PopSubject(group, topic, queue)

    def _try_take(self, owners: Sequence[Owner]) -> bool:
        """Take a place for one that waits; False: there is none."""
        if not self._shares.try_take(owners):
            return False
        if not self._limit.try_take():
            self._shares.give_back(owners)
            return False
        return True

    async def _wait(self, client: RemotingPeer, wanted: PopSubject, wait_s: float) -> bool:
        """Wait until something can be popped; False: the time is over, or the broker stops.

        Raises:
            ConnectionError: the client is gone.
        """
        ticket = PopTicket(_NO_NUMBER)
        waiting = self._waiting.setdefault(client, set())
        waiting.add(ticket)
        try:
            if not client.is_gone:
                found = await self._looks.wait(wanted, ticket, wait_s, client.client_id)
        finally:
            waiting.discard(ticket)
            if not waiting and self._waiting.get(client) is waiting:
                del self._waiting[client]
        if client.is_gone:
            raise ConnectionResetError("the client is gone")
        return found

    async def _read(
        self,
        exchange: Exchange,
        wanted: PopSubject,
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
            offset=head_of(state),
            batch_size=most,
        )
        await self._face.pull(call, exchange.caller(group), keep)
        return found


def _shown(value: bool) -> str:
    return "true" if value else "false"
