"""ReceiveMessage: it waits in the broker until a pop has messages; these are delivered.

Role: checks, the queue a client names, the pop, the per-delivery fragment, the answer. Invariants:
a message that was leased is taken by its client, or released; a receive that waits is counted in
a limit, and in the shares of its client, connection, address and namespace; one that is too many
is refused before it costs anything; a broker that stops lets nobody wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import Principal, topic_target
from strata_broker.base import wire
from strata_broker.base.admission import Admission, Admitted, options_of
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.base.failures import unexpected
from strata_broker.base.parsing import parse
from strata_broker.base.watermarks import show_watermark
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.sessions import Client, Sessions
from strata_broker.clients.settings import group_policy
from strata_broker.metadata.filters import Filters
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted, named_queue
from strata_broker.metadata.requests import Caller, caller_of, language_of, milliseconds
from strata_broker.receives.answer_room import AnswerRoom, AnswerShare
from strata_broker.receives.deliver import Deliverer, Given, given_by
from strata_broker.receives.popping_calls import PoppingCall, check_invisible
from strata_broker.receives.pops import Pops
from strata_broker.receives.targets import ReceiveTarget
from strata_broker.receives.under_way import CheckedReceive, UnderWay
from strata_broker.receives.waiting_room import WaitingRoom
from strata_edge.ports import HotCall
from strata_mq.access import Action, ResourceKind
from strata_mq.layout import key_hash
from strata_mq.requests import (
    Code,
    RequestError,
    check_new_consumer_group,
    is_own_consumer_group,
    polling_ms,
    unsaid_polling_ms,
)

RECEIVE = "ReceiveMessage"
# The Go client's FIFO push consumer (5.1.4) goes on to the next message of a batch while it retries
# the one before, so it must not get two of one message group.
_GO = "GO"
_DAY_MS = 86_400_000


class _Popped(NamedTuple):
    """A pop's answer: its origin, number of its receive, why messages may be missing, its room."""

    raft_group: int
    response: storage_pb2.PopResponse
    number: int
    trouble: str
    share: AnswerShare


class Receiver:
    """Serves ReceiveMessage."""

    def __init__(
        self,
        boot_id: int,
        provisioner: Provisioner,
        pops: Pops,
        *,
        deliverer: Deliverer,
        filters: Filters,
        sessions: Sessions,
        runtime: CallRuntime,
    ) -> None:
        config, metrics = runtime.config, runtime.metrics
        self._boot_id = boot_id
        self._last_attempt = 0
        self._view = provisioner.view
        self._provisioner = provisioner
        self._popper = pops.popper
        self._reads = pops.reads
        self._deliverer = deliverer
        self._ender = pops.ender
        self._takebacks = pops.takebacks
        self._unclaimed = pops.unclaimed
        self._filters = filters
        self._sessions = sessions
        self._config = config
        self._limits = config.limits()
        self._clock = runtime.clock
        self._requests = runtime.requests
        self._recorder = runtime.recorder
        self._access = runtime.access
        self._admission = Admission(options_of("receives", config.receive), metrics)
        self._room = AnswerRoom(
            "receives",
            config.receive.max_bytes_in_flight,
            config.receive.max_bytes,
            wait_s=config.storage_client.call_timeout_ms / 1000,
            metrics=metrics,
        )
        show_watermark(metrics, "pull", lambda: self._admission.used)
        # Receives that are refused after a pause.
        self._surplus = 0
        self._max_surplus = config.receive.max_surplus
        metrics.gauge("strata_broker_surplus_receives", lambda: self._surplus)
        self._waiting: dict[HotCall, UnderWay] = {}
        self._ending = False

    @property
    def room(self) -> WaitingRoom:
        """Lines of receives, where other calls may wait for the same news."""
        return self._popper.room

    def take(self, call: HotCall, principal: Principal) -> None:
        """Take one call; it is answered now or when messages or the end of the wait come.

        Args:
            call: the ReceiveMessage.
            principal: who receives.
        """
        started_s = self._clock.monotonic_s()
        if self._ending:
            call.complete(wire.nothing(self._clock.wall_ms()))
            return
        try:
            caller = caller_of(call.metadata)
            try:
                admitted = self._admission.enter(caller.client_id, call.peer, len(call.request))
            except RequestError as bad:
                self._refuse_later(call, bad, started_s)
                return
        except RequestError as bad:
            self._refuse(call, bad, started_s)
            return
        try:
            receive = self._check(call, caller, principal)
            admitted.of_namespace(receive.topic.namespace)
            self._begin(call, receive, admitted, started_s, principal.user)
        except RequestError as bad:
            admitted.leave()
            self._refuse(call, bad, started_s)
        except BaseException:
            admitted.leave()
            raise

    def _begin(
        self,
        call: HotCall,
        receive: CheckedReceive,
        admitted: Admitted,
        started_s: float,
        user: str,
    ) -> None:
        client = self._sessions.heard(receive.client_id, call.peer, user)
        client.language = client.language or receive.language
        topic = (receive.topic.namespace, receive.topic.name)
        self._sessions.subscribed(client, receive.group, topic, receive.expression)
        under_way = UnderWay(
            self,
            call,
            receive,
            client=client,
            ticket=self._ender.ticket(),
            admitted=admitted,
            started_s=started_s,
        )
        task = under_way.task = self._requests.spawn(
            "receive", self._serve(under_way), under_way.on_failure
        )
        self._waiting[call] = under_way
        # A task that is cancelled before it begins runs none of its own code.
        task.add_done_callback(under_way.on_end)
        call.on_gone(under_way.on_gone)

    def _refuse_later(self, call: HotCall, failure: RequestError, started_s: float) -> None:
        """Refuse a receive that is too many, after a pause: who asks again at once has to wait."""
        pause_s = self._config.receive.surplus_pause_ms / 1000
        if failure.code is not Code.TOO_MANY_REQUESTS or self._surplus >= self._max_surplus:
            self._refuse(call, failure, started_s)
            return

        def refuse() -> None:
            self._surplus -= 1
            self._refuse(call, failure, started_s)

        self._surplus += 1
        asyncio.get_running_loop().call_later(pause_s, refuse)

    def end_all(self) -> None:
        """Answer every receive with "nothing" from now on: the broker stops.

        A pop that takes leases after this finds its call answered and releases them.
        """
        self._ending = True
        for call, under_way in self._waiting.items():
            call.complete(wire.nothing(self._clock.wall_ms()))
            self._end(under_way)

    def failed(self, under_way: UnderWay) -> None:
        """See `under_way.ReceiveOwner`."""
        self._refuse(under_way.call, unexpected(), under_way.started_s)

    def ended(self, under_way: UnderWay) -> None:
        """See `under_way.ReceiveOwner`."""
        del self._waiting[under_way.call]
        under_way.admitted.leave()

    def client_gone(self, under_way: UnderWay) -> None:
        """See `under_way.ReceiveOwner`."""
        self._end(under_way)
        if under_way.receive.auto_renew:
            self._unclaimed.cancelled(under_way.receive.client_id, under_way.started_s)

    def _end(self, under_way: UnderWay) -> None:
        """End a pop whose client has gone.

        One that waits in line leaves it at once and took nothing; one that takes leases right now
        is answered, and its messages are released. Only one that storage does not end is given up.
        """
        assert under_way.task is not None
        self._ender.end(under_way.ticket)
        grace_s = self._config.receive.gone_grace_ms / 1000
        asyncio.get_running_loop().call_later(grace_s, under_way.task.cancel)

    async def _serve(self, under_way: UnderWay) -> None:
        call, receive, client = under_way.call, under_way.receive, under_way.client
        ticket = under_way.ticket
        client.open_calls += 1
        share = self._room.share(receive.topic.topic_id)
        number = 0
        seen: Given | None = None
        try:
            group = await self._provisioner.consumer_group_for_use(
                *receive.group,
                FirstUse(Audited(client.user, call.peer, receive.client_id), RECEIVE),
            )
            if group.fifo or receive.topic.is_lite:
                number = self._takebacks.receive_of(group.consumer_group_id, receive.attempt)
            elif receive.names_attempt:
                # Nobody but this broker asks for its leases again: names of clients may be equal.
                receive = receive._replace(attempt=self._own_attempt())
            target = ReceiveTarget(
                receive.topic,
                receive.wanted,
                group.consumer_group_id,
                receive.message_filter.SerializeToString(deterministic=True),
                repeats=group.fifo and receive.names_attempt,
                looked=partial(_looked, share),
                by_level=_is_by_level(receive, group),
                max_messages=receive.max_messages,
                client_id=receive.client_id,
                attempt=receive.attempt if receive.names_attempt else 0,
            )
            raft_group, response = await self._popper.pop(
                target,
                partial(self._pop, receive, client, group, share),
                receive.wait_ms,
                ticket,
            )
            if ticket.unsettled:
                seen = given_by(
                    raft_group,
                    group.consumer_group_id,
                    receive.topic.topic_id,
                    response.messages,
                )
            popped = _Popped(raft_group, response, number, ticket.trouble(), share)
            if await self._deliver(call, receive, group, popped=popped):
                self._recorder.answered(RECEIVE, Code.OK, under_way.started_s)
        except RequestError as bad:
            self._refuse(call, bad, under_way.started_s)
        except asyncio.CancelledError:
            self._takebacks.take_back_unseen(ticket.request, number)
            raise
        finally:
            for unseen in ticket.unsettled.values():
                self._takebacks.take_back_unseen(unseen, number, seen)
            share.leave()
            client.open_calls -= 1

    async def _deliver(
        self,
        call: HotCall,
        receive: CheckedReceive,
        group: meta_pb2.ConsumerGroup,
        *,
        popped: _Popped,
    ) -> bool:
        """Answer with what a pop gave; False: the client has gone, and its leases are given back.

        Raises:
            RequestError: the messages cannot be read; their leases are given back.
        """
        raft_group, response, number, trouble, _ = popped
        group_id, topic_id = group.consumer_group_id, receive.topic.topic_id
        given = None
        if response.applied_index:
            # Messages that cannot be read leave the response, and the read gives their leases back.
            # Given back once more, a lease is void already.
            given = given_by(raft_group, group_id, topic_id, response.messages)
        answer = None
        try:
            if not call.done():
                await self._read(receive, group, popped)
                answer = self._deliverer.answer(raft_group, group, receive.topic, response, trouble)
        finally:
            if answer is None or call.done():
                left = given or given_by(raft_group, group_id, topic_id, response.messages)
                self._takebacks.take_back(left, receive.attempt, number)
        if answer is None or call.done():
            return False
        given = given or answer.given
        take_back = partial(self._takebacks.take_back, given, receive.attempt, number)
        call.complete(answer.responses, take_back if given.packed else None)
        if receive.auto_renew and given.packed:
            self._unclaimed.gave(receive.client_id, given.lease_count, take_back)
        self._reads.spread.count(
            raft_group, topic_id, answer.size_bytes, from_leader=not response.applied_index
        )
        return True

    async def _read(
        self, receive: CheckedReceive, group: meta_pb2.ConsumerGroup, popped: _Popped
    ) -> None:
        """Read what was leased, if only its places came; what cannot be read is released.

        Raises:
            RequestError: storage could not be asked, or TOO_MANY_REQUESTS, no room for the bytes.
        """
        raft_group, response, number, _, share = popped
        if response.applied_index and response.messages:
            await share.wait_for(sum(leased.message_length for leased in response.messages))
            topic = receive.topic
            left = await self._reads.fill_popped(
                raft_group, topic.topic_id, response, ordered=group.fifo or topic.is_lite
            )
            for leased, is_unreadable in ((left.unreadable, True), (left.others, False)):
                given = given_by(raft_group, group.consumer_group_id, topic.topic_id, leased)
                given = given._replace(unreadable=is_unreadable)
                self._takebacks.take_back(given, receive.attempt, number)

    def _refuse(self, call: HotCall, failure: RequestError, started_s: float) -> None:
        call.complete(
            [
                wire.receive_status(failure.code, failure.text),
                wire.delivery_timestamp(self._clock.wall_ms()),
            ]
        )
        self._recorder.answered(RECEIVE, failure.code, started_s)
        self._access.tell_if_refused(failure, call, RECEIVE)
        self._recorder.pace.refused(call.peer, (failure.code,))

    def _check(self, call: HotCall, caller: Caller, principal: Principal) -> CheckedReceive:
        """Check a request and find out where it goes.

        Raises:
            RequestError: the first thing that is wrong.
        """
        try:
            request = parse(service_pb2.ReceiveMessageRequest, call.request)
        except DecodeError as error:
            raise RequestError(Code.BAD_REQUEST, str(error)) from error
        group = caller.name_of(request.group)
        topic_name = caller.name_of(request.message_queue.topic)
        principal.require(ResourceKind.GROUP, group, Action.SUB)
        principal.require(*topic_target(topic_name), Action.SUB)
        if self._view.consumer_group(*group) is None or is_own_consumer_group(group[1]):
            check_new_consumer_group(group[1])
        topic = self._provisioner.topic(*topic_name)
        message_filter = self._filters.of(request.filter_expression, caller.client_id, call.peer)
        invisible_ms = milliseconds(request.invisible_duration)
        if not request.auto_renew:
            check_invisible(self._limits, call, invisible_ms)
        return CheckedReceive(
            client_id=caller.client_id,
            group=group,
            topic=topic,
            wanted=self._wanted(call, topic, request),
            max_messages=min(max(request.batch_size, 1), self._config.receive.max_messages),
            invisible_ms=0 if request.auto_renew else invisible_ms,
            auto_renew=request.auto_renew,
            attempt=self._attempt(request),
            names_attempt=bool(request.attempt_id),
            wait_ms=self._wait_ms(caller, request, call),
            expression=request.filter_expression.expression,
            message_filter=message_filter,
            one_per_message_group=request.auto_renew and caller.language == _GO,
            language=language_of(caller.language),
        )

    def _wait_ms(
        self, caller: Caller, request: service_pb2.ReceiveMessageRequest, call: HotCall
    ) -> int:
        """Return how long a receive may wait.

        Raises:
            RequestError: ILLEGAL_POLLING_TIME.
        """
        if isinstance(call, PoppingCall):
            return min(call.wait_ms, self._limits.max_polling_ms)
        left_s = call.time_left_s()
        # A client may choose years.
        left_ms = None if left_s is None else min(int(left_s * 1000), _DAY_MS)
        if request.HasField("long_polling_timeout"):
            wanted_ms = milliseconds(request.long_polling_timeout)
        else:
            timeout_ms = self._sessions.request_timeout_ms(caller.client_id)
            if not 0 < timeout_ms <= self._config.receive.max_polling_ms:
                timeout_ms = self._config.receive.request_timeout_ms
            wanted_ms = unsaid_polling_ms(self._limits, left_ms, timeout_ms)
        if left_ms is not None:
            left_ms -= self._config.receive.deadline_margin_ms
        return polling_ms(self._limits, wanted_ms, left_ms)

    def _attempt(self, request: service_pb2.ReceiveMessageRequest) -> int:
        """Return what names this receive in storage."""
        return key_hash(request.attempt_id) if request.attempt_id else self._own_attempt()

    def _own_attempt(self) -> int:
        self._last_attempt += 1
        return key_hash(f"{self._boot_id}/{self._last_attempt}")

    def _wanted(
        self, call: HotCall, topic: TopicRow, request: service_pb2.ReceiveMessageRequest
    ) -> Wanted:
        """Return what a receive's public queue stands for (rule 20).

        A simple consumer's queue id does not matter, as in the real product, and any queue means
        any of the topic: a receive never waits at an empty one beside a full one (rule 35).
        """
        named = request.message_queue
        home = self._view.home(topic, named.broker.name)
        if home is None:
            raise RequestError(Code.FORBIDDEN, "no readable queue")
        if isinstance(call, PoppingCall):
            return Wanted(home, call.queue)
        if named.id <= 0 or not request.auto_renew:
            return Wanted(home, ANY_QUEUE)
        return Wanted(home, named_queue(home, named.id))

    def _pop(
        self,
        receive: CheckedReceive,
        client: Client,
        group: meta_pb2.ConsumerGroup,
        share: AnswerShare,
        topic: TopicRow,
        place: PopPlace,
    ) -> storage_pb2.PopRequest:
        room_bytes = share.ask()
        # The messages of a lite topic are newer than its subscription, or an option says where to
        # begin; and it begins anew whenever it ended.
        latest = self._config.receive.start_from_latest and not receive.topic.is_lite
        spread = self._reads.spread.begin(
            place.raft_group, receive.topic.topic_id, group.consumer_group_id
        )
        return storage_pb2.PopRequest(
            raft_group=place.raft_group,
            consumer_group_id=group.consumer_group_id,
            topic=topic_ref(topic),
            queue=place.queue,
            max_messages=receive.max_messages,
            invisible_ms=receive.invisible_ms,
            auto_renew=receive.auto_renew,
            holder=client.holder,
            attempt=receive.attempt,
            filter=receive.message_filter,
            fifo=group.fifo,
            max_attempts=group_policy(group).max_attempts,
            dead_letter_topic_id=group.dead_letter_topic_id,
            start=(
                storage_pb2.START_POSITION_LATEST if latest else storage_pb2.START_POSITION_EARLIEST
            ),
            max_bytes=room_bytes or self._config.receive.max_bytes,
            one_per_message_group=receive.one_per_message_group,
            broker_boot_id=self._boot_id,
            client_id=receive.client_id,
            places_only=spread or not room_bytes,
        )


def _is_by_level(receive: CheckedReceive, group: meta_pb2.ConsumerGroup) -> bool:
    """Whether the highest level comes first: as in RocketMQ, not for ordered consumers."""
    is_any_queue = receive.wanted.queue == ANY_QUEUE
    return is_any_queue and not group.fifo and receive.topic.has_levels


def topic_ref(topic: TopicRow) -> storage_pb2.TopicRef:
    """Return a topic as far as storage must know it."""
    return storage_pb2.TopicRef(
        topic_id=topic.topic_id,
        slot_base=topic.slot_base,
        queue_count=topic.queue_count,
        dead_letter=topic.is_dead_letter,
    )


def _looked(share: AnswerShare, popped: storage_pb2.PopResponse | None) -> None:
    if popped is None or popped.applied_index or not popped.messages:
        share.came(0)
    else:
        # Beside the messages it has a few bytes for each of them.
        share.came(popped.ByteSize())
