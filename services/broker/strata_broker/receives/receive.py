"""ReceiveMessage: a pop that waits in storage; what comes back is delivered.

Role: checks, the queue a client names, the pop, the per-delivery fragment, the answer. Invariants:
a message that was leased is delivered, or released because its client has gone; a receive that
waits is counted in a limit; a broker that stops lets nobody wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker import errors, wire
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.sessions import Client, Sessions
from strata_broker.clients.settings import group_policy
from strata_broker.config import BrokerConfig
from strata_broker.failures import unexpected
from strata_broker.observability.recorder import Recorder
from strata_broker.observability.watermarks import show_watermark
from strata_broker.parsing import parse
from strata_broker.receives.deliver import Deliverer
from strata_broker.receives.filters import Filters
from strata_broker.receives.popper import Popper
from strata_broker.receives.replica_reads import ReplicaReads
from strata_broker.requests import caller_of, language_of, milliseconds
from strata_broker.storage.metadata import Home, MetadataView, Name, TopicRow
from strata_broker.storage.places import ANY_QUEUE, Place, Wanted
from strata_edge.ports import HotCall
from strata_mq.errors import Code, RequestError
from strata_mq.hashing import key_hash
from strata_mq.names import check_consumer_group
from strata_mq.validation import check_receive_invisible, polling_ms
from strata_runtime.clock import Clock
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

RECEIVE = "ReceiveMessage"
# The Go client's FIFO push consumer (5.1.4) goes on to the next message of a batch while it retries
# the one before, so it must not get two of one message group.
_GO = "GO"


class Receive(NamedTuple):
    """A checked request."""

    client_id: str
    group: Name
    topic: TopicRow
    wanted: Wanted
    max_messages: int
    invisible_ms: int
    auto_renew: bool
    attempt: int
    wait_ms: int
    expression: str
    message_filter: storage_pb2.Filter
    one_per_message_group: bool
    language: int


class Receiver:
    """Serves ReceiveMessage."""

    def __init__(
        self,
        boot_id: int,
        view: MetadataView,
        provisioner: Provisioner,
        popper: Popper,
        reads: ReplicaReads,
        deliverer: Deliverer,
        filters: Filters,
        sessions: Sessions,
        config: BrokerConfig,
        clock: Clock,
        requests: RequestTasks,
        recorder: Recorder,
        metrics: Metrics,
    ) -> None:
        self._boot_id = boot_id
        self._last_attempt = 0
        self._view = view
        self._provisioner = provisioner
        self._popper = popper
        self._reads = reads
        self._deliverer = deliverer
        self._filters = filters
        self._sessions = sessions
        self._config = config
        self._limits = config.limits()
        self._clock = clock
        self._requests = requests
        self._recorder = recorder
        self._parked = Limit("receives", config.receive.max_parked, "receives", metrics)
        show_watermark(metrics, "pull", lambda: self._parked.used)
        self._parked_of: dict[str, int] = {}
        self._waiting: dict[HotCall, asyncio.Task[None]] = {}
        self._ending = False

    def take(self, call: HotCall) -> None:
        """Take one call; it is answered now or when messages or the end of the wait come."""
        started_s = self._clock.monotonic_s()
        if self._ending:
            call.complete(wire.nothing(self._clock.wall_ms()))
            return
        try:
            receive = self._check(call)
            parked = self._parked_of.get(receive.client_id, 0)
            if parked >= self._config.receive.max_parked_per_client or not self._parked.try_take():
                raise errors.too_many_requests()
        except RequestError as bad:
            self._refuse(call, bad, started_s)
            return
        self._parked_of[receive.client_id] = parked + 1
        client = self._sessions.heard(receive.client_id)
        client.language = client.language or receive.language
        topic = (receive.topic.namespace, receive.topic.name)
        self._sessions.subscribed(client, receive.group, topic, receive.expression)
        task = self._requests.spawn(
            "receive",
            self._serve(call, receive, client, started_s),
            lambda _: self._refuse(call, unexpected(), started_s),
        )
        self._waiting[call] = task
        call.on_gone(lambda: self._gone(task))

    def end_all(self) -> None:
        """Answer every receive with "nothing" from now on: the broker stops.

        A pop that takes leases after this finds its call answered and releases them.
        """
        self._ending = True
        for call, task in self._waiting.items():
            call.complete(wire.nothing(self._clock.wall_ms()))
            self._gone(task)

    def _gone(self, task: asyncio.Task[None]) -> None:
        """End a pop whose client has gone, after a grace.

        A pop that is being answered right now would take leases that nobody knows of, so it may
        end by itself and its messages are released; one that still waits then took none.
        """
        grace_s = self._config.receive.gone_grace_ms / 1000
        asyncio.get_running_loop().call_later(grace_s, task.cancel)

    async def _serve(
        self, call: HotCall, receive: Receive, client: Client, started_s: float
    ) -> None:
        client.open_calls += 1
        try:
            group = await self._provisioner.consumer_group_for_use(*receive.group)
            raft_group, response = await self._popper.pop(
                receive.topic,
                receive.wanted,
                lambda place, wait_ms: self._pop(receive, client, group, place, wait_ms),
                receive.wait_ms,
            )
            await self._read(raft_group, group, receive.topic, response)
            if call.done():
                await self._deliverer.release(raft_group, group, receive.topic, response)
                return
            responses = self._deliverer.responses(raft_group, group, receive.topic, response)
            call.complete(responses)
            self._recorder.answered(RECEIVE, Code.OK, started_s)
        except RequestError as bad:
            self._refuse(call, bad, started_s)
        finally:
            client.open_calls -= 1
            self._waiting.pop(call, None)
            self._parked.give_back()
            self._unpark(receive.client_id)

    async def _read(
        self,
        raft_group: int,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        popped: storage_pb2.PopResponse,
    ) -> None:
        """Read what was leased, if only its places came; what cannot be read is released."""
        only_places = popped.applied_index > 0
        if only_places and popped.messages:
            unread = await self._reads.fill_popped(raft_group, topic.topic_id, popped)
            if unread:
                # What cannot be released either is leased until its time is over.
                with suppress(RequestError):
                    given_back = storage_pb2.PopResponse(messages=unread)
                    await self._deliverer.release(raft_group, group, topic, given_back)
        size_bytes = sum(len(leased.message) for leased in popped.messages)
        self._reads.spread.count(
            raft_group, topic.topic_id, size_bytes, from_leader=not only_places
        )

    def _unpark(self, client_id: str) -> None:
        left = self._parked_of[client_id] - 1
        if left:
            self._parked_of[client_id] = left
        else:
            del self._parked_of[client_id]

    def _refuse(self, call: HotCall, failure: RequestError, started_s: float) -> None:
        call.complete(
            [
                wire.receive_status(failure.code, failure.text),
                wire.delivery_timestamp(self._clock.wall_ms()),
            ]
        )
        self._recorder.answered(RECEIVE, failure.code, started_s)

    def _check(self, call: HotCall) -> Receive:
        """Check a request and find out where it goes.

        Raises:
            RequestError: the first thing that is wrong.
        """
        caller = caller_of(call.metadata)
        try:
            request = parse(service_pb2.ReceiveMessageRequest, call.request)
        except DecodeError as error:
            raise RequestError(Code.BAD_REQUEST, str(error)) from error
        group = caller.name_of(request.group)
        if self._view.consumer_group(*group) is None:
            check_consumer_group(group[1])
        topic = self._provisioner.topic(*caller.name_of(request.message_queue.topic))
        message_filter = self._filters.of(request.filter_expression)
        invisible_ms = milliseconds(request.invisible_duration)
        if not request.auto_renew:
            check_receive_invisible(self._limits, invisible_ms)
        left_s = call.time_left_s()
        left_ms = None
        if left_s is not None:
            left_ms = int(left_s * 1000) - self._config.receive.deadline_margin_ms
        return Receive(
            client_id=caller.client_id,
            group=group,
            topic=topic,
            wanted=self._wanted(topic, request),
            max_messages=min(max(request.batch_size, 1), self._config.receive.max_messages),
            invisible_ms=0 if request.auto_renew else invisible_ms,
            auto_renew=request.auto_renew,
            attempt=self._attempt(request),
            wait_ms=polling_ms(self._limits, milliseconds(request.long_polling_timeout), left_ms),
            expression=request.filter_expression.expression,
            message_filter=message_filter,
            one_per_message_group=request.auto_renew and caller.language == _GO,
            language=language_of(caller.language),
        )

    def _attempt(self, request: service_pb2.ReceiveMessageRequest) -> int:
        """Return what names this receive in storage: 0 when no repeat will ever ask for it."""
        if request.attempt_id:
            return key_hash(request.attempt_id)
        if not request.auto_renew:
            return 0
        self._last_attempt += 1
        return key_hash(f"{self._boot_id}/{self._last_attempt}")

    def _wanted(self, topic: TopicRow, request: service_pb2.ReceiveMessageRequest) -> Wanted:
        """Return what a receive's public queue stands for (rule 20).

        A simple consumer's queue id does not matter, as in the real product: it reads every queue
        under the broker name, so that it never waits at an empty one beside a full one.
        """
        named = request.message_queue
        home = self._view.home(topic, named.broker.name)
        if home is None:
            raise RequestError(Code.FORBIDDEN, "no readable queue")
        if named.id <= 0 or not request.auto_renew:
            return Wanted(home, ANY_QUEUE)
        return Wanted(home, _named_queue(home, named.id))

    def _pop(
        self,
        receive: Receive,
        client: Client,
        group: meta_pb2.ConsumerGroup,
        place: Place,
        wait_ms: int,
    ) -> storage_pb2.PopRequest:
        latest = self._config.receive.start_from_latest
        return storage_pb2.PopRequest(
            raft_group=place.raft_group,
            consumer_group_id=group.consumer_group_id,
            topic=topic_ref(receive.topic),
            queue=place.queue,
            max_messages=receive.max_messages,
            invisible_ms=receive.invisible_ms,
            auto_renew=receive.auto_renew,
            holder=client.holder,
            attempt=receive.attempt,
            wait_ms=wait_ms,
            filter=receive.message_filter,
            fifo=group.fifo,
            max_attempts=group_policy(group).max_attempts,
            dead_letter_topic_id=group.dead_letter_topic_id,
            start=(
                storage_pb2.START_POSITION_LATEST if latest else storage_pb2.START_POSITION_EARLIEST
            ),
            max_bytes=self._share_bytes(),
            one_per_message_group=receive.one_per_message_group,
            broker_boot_id=self._boot_id,
            client_id=receive.client_id,
            places_only=self._reads.spread.begin(
                place.raft_group, receive.topic.topic_id, group.consumer_group_id
            ),
        )

    def _share_bytes(self) -> int:
        """Return what one answer may take, so that all receives that wait do not fill the memory.

        Equal parts of the common limit: many parked receives may be answered at once. One message
        always goes, however small the part.
        """
        limits = self._config.receive
        return min(
            limits.max_bytes, max(1, limits.max_bytes_in_flight // max(1, self._parked.used))
        )


def _named_queue(home: Home, local_id: int) -> int:
    if local_id > len(home.queues):
        raise RequestError(Code.FORBIDDEN, "no readable queue")
    return home.queues[local_id - 1]


def topic_ref(topic: TopicRow) -> storage_pb2.TopicRef:
    """Return a topic as far as storage must know it."""
    return storage_pb2.TopicRef(
        topic_id=topic.topic_id,
        slot_base=topic.slot_base,
        queue_count=topic.queue_count,
        dead_letter=topic.is_dead_letter,
    )
