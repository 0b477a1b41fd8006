"""PullMessage and the offsets of pull consumers: reading a queue without leases.

A pull consumer names a queue and an offset and keeps its own position. UpdateOffset stores it in
the queue's raft group (rule 21), as the same head that pops move and `strata group reset` sets.
So a consumer group can be shown, reset and deleted whichever way it consumes; a group that pops
and pulls the same topic moves one position with both. Every member of a group can pull every
message: that is broadcast consumption.

Calls with an offset name single queues: local id i is the i-th queue under the broker name. This
includes id 0, which means "any queue" in sends and receives (rule 20).

Codes are those that RocketMQ lists for these calls; an illegal name is treated as unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.base import errors, wire
from strata_broker.base.admission import Admission, Admitted, options_of
from strata_broker.base.owner_turns import OwnerTurns
from strata_broker.base.watermarks import show_watermark
from strata_broker.clients.provision import Provisioner, topic_not_found
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.filters import Filters
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller, milliseconds, time_for, use_of
from strata_broker.metadata.stored_messages import shown_message
from strata_broker.receives.answer_room import AnswerRoom, AnswerShare
from strata_broker.receives.consumer_states import ConsumerStates
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client import epochs
from strata_broker.storage_client.attempts import Attempts
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.replica_reads import ReplicaReads
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError

_STOPPING = "stopping"
_WINDOW = struct.Struct(">QQ")


class IllegalOffset(RequestError):
    """A pull at an offset that the queue does not have.

    Attributes:
        nearest: the nearest offset of the queue.
    """

    def __init__(self, offset: int, nearest: int, reason: str) -> None:
        super().__init__(Code.ILLEGAL_OFFSET, f"offset {offset} {reason} {nearest}")
        self.nearest = nearest


class PullWindow(NamedTuple):
    """The place of an answer in its queue.

    Attributes:
        min_offset: of the oldest message of the queue's epoch.
        end_offset: behind the newest one.
    """

    min_offset: int
    end_offset: int

    def pack(self) -> bytes:
        """Return it as bytes, for a face that asks for it behind the responses."""
        return _WINDOW.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> PullWindow | None:
        """Return what `pack` packed; None for no bytes."""
        return cls(*_WINDOW.unpack(data)) if data else None


class Pulled(NamedTuple):
    """Answer of a pull.

    Attributes:
        responses: serialised PullMessageResponses: OK, the messages, the offset of the next pull.
        window: of the queue; None: no storage node was asked.
    """

    responses: list[bytes]
    window: PullWindow | None = None


class Pull(NamedTuple):
    """A checked PullMessageRequest.

    Attributes:
        ends_s: monotonic time at which it is answered, also when no storage node answers: its
            client must learn why before it gives up.
        client_id: whose turn it is.
    """

    topic: TopicRow
    group: meta_pb2.ConsumerGroup
    queue: int
    max_messages: int
    wait_ms: int
    wanted: storage_pb2.Filter
    ends_s: float
    client_id: str


class Puller:
    """Serves the four calls.

    Attributes:
        states: of consumer groups.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        storage: StorageClient,
        *,
        reads: ReplicaReads,
        holders: HolderCalls,
        filters: Filters,
        sessions: Sessions,
        store_host: str,
        runtime: CallRuntime,
    ) -> None:
        config, metrics = runtime.config, runtime.metrics
        view = self._view = provisioner.view
        self._provisioner = provisioner
        self._storage = storage
        self._reads = reads
        self._holders = holders
        self.states = ConsumerStates(holders)
        self._filters = filters
        self._sessions = sessions
        self._config = config
        self._store_host = store_host
        self._clock = runtime.clock
        self._recorder = runtime.recorder
        self._admission = Admission(options_of("pulls", config.pull), metrics)
        self._room = AnswerRoom(
            "pulls",
            config.pull.max_bytes_in_flight,
            config.pull.max_bytes,
            wait_s=config.storage_client.call_timeout_ms / 1000,
            metrics=metrics,
        )
        self._turns = OwnerTurns(
            "pulls", config.pull.max_at_once, max_hold_ms=config.pull.turn_ms, metrics=metrics
        )
        show_watermark(metrics, "lite_pull", lambda: self._admission.used)
        # Parked pulls by topic id, and all of them under one key.
        self._attempts = Attempts()
        self._stopping = False
        view.on_move(lambda topic_id, _: self._attempts.give_up(topic_id))

    def set_store_host(self, store_host: str) -> None:
        """Set the host that messages name as the one that stored them."""
        self._store_host = store_host

    def end_all(self) -> None:
        """Answer every parked pull with the messages there are: the broker stops."""
        self._stopping = True
        self._attempts.give_up(_STOPPING)

    # Pulling ------------------------------------------------------------------------------------

    def admit(self, caller: Caller, peer: str, size_bytes: int) -> Admitted:
        """Admit a pull before it is parsed; it leaves when its client has read the answer.

        Raises:
            RequestError: TOO_MANY_REQUESTS, PAYLOAD_TOO_LARGE.
        """
        return self._admission.enter(caller.client_id, peer, size_bytes)

    async def pull(
        self,
        caller: Caller,
        request: service_pb2.PullMessageRequest,
        left_s: float | None,
        admitted: Admitted,
    ) -> Pulled:
        """Read messages from an offset on; wait for one at the end of the queue.

        Raises:
            IllegalOffset: the queue begins later or ends before.
            RequestError: unknown names, a bad filter, limits, or storage refused.
        """
        pull = await self._check(caller, request, left_s)
        admitted.of_namespace(pull.topic.namespace)
        client = self._sessions.heard(caller.client_id, caller.peer, caller.user)
        group = (pull.group.namespace, pull.group.name)
        topic = (pull.topic.namespace, pull.topic.name)
        self._sessions.subscribed(client, group, topic, request.filter_expression.expression)
        client.open_calls += 1
        try:
            return await self._pull(pull, request.offset)
        finally:
            client.open_calls -= 1

    async def _check(
        self, caller: Caller, request: service_pb2.PullMessageRequest, left_s: float | None
    ) -> Pull:
        topic = self._topic(caller, request.message_queue.topic)
        queue = self._queue(topic, request.message_queue)
        wanted = self._filter(caller, request.filter_expression)
        if request.offset < 0:
            raise IllegalOffset(request.offset, 0, "is negative; the least is")
        group = await self._group(caller, request.group, "PullMessage")
        wait_ms = milliseconds(request.long_polling_timeout)
        if left_s is not None:
            margin_ms = self._config.receive.deadline_margin_ms
            wait_ms = min(wait_ms, int(left_s * 1000) - margin_ms)
        wait_ms = min(max(wait_ms, 0), self._config.receive.max_polling_ms)
        most_s = (wait_ms + self._config.storage_client.call_timeout_ms) / 1000
        return Pull(
            topic,
            group,
            queue,
            min(max(request.batch_size, 1), self._config.pull.max_messages),
            wait_ms,
            wanted,
            self._clock.monotonic_s() + time_for(left_s, most_s, most_s),
            caller.client_id,
        )

    async def _pull(self, pull: Pull, offset: int) -> Pulled:
        deadline_s = self._clock.monotonic_s() + pull.wait_ms / 1000
        window: PullWindow | None = None
        # A pull looks once before it waits; who waits has no turn.
        looks = True
        while True:
            epoch = epochs.epoch_of(self._view, pull.topic, pull.queue, offset)
            left_ms = round((deadline_s - self._clock.monotonic_s()) * 1000)
            # An older epoch gets no more messages.
            waits = epoch.end_offset is None and left_ms > 0 and not self._stopping
            wait_ms = min(left_ms, self._config.pull.max_slice_ms) if waits else 0
            if looks and self._storage.has_leader(epoch.raft_group):
                # In turns: this is where many messages keep the event loop busy.
                async with self._turns.of(pull.client_id):
                    fetched = await self._fetch(pull, epoch.raft_group, offset, 0)
                    responses = self._answer(pull, fetched)
            else:
                fetched = await self._fetch(pull, epoch.raft_group, offset, wait_ms)
                responses = self._answer(pull, fetched)
            looks = False
            if fetched is not None:
                try:
                    _check_offset(offset, epoch, fetched)
                except IllegalOffset:
                    if await self._lies_elsewhere(pull, offset, epoch):
                        continue
                    raise
                window = PullWindow(fetched.min_offset, fetched.next_offset)
                if responses:
                    return Pulled(responses, window)
                # The filter skipped all messages; the end of an epoch is the begin of the next one.
                offset = fetched.resume_offset
            if self._stopping or self._clock.monotonic_s() >= deadline_s:
                return Pulled([wire.RECEIVE_OK, wire.next_offset(offset)], window)

    async def _lies_elsewhere(self, pull: Pull, offset: int, epoch: epochs.HeldEpoch) -> bool:
        """Whether the metadata lag behind, so that an offset was looked for in the wrong place.

        A fetch reads what a raft group has, also of a queue that left it. A consumer that is told
        the end of a former epoch goes back to it.

        Raises:
            RequestError: storage refused, or the metadata did not catch up in time.
        """
        await self._offsets(pull.topic, pull.queue, None)
        return epochs.epoch_of(self._view, pull.topic, pull.queue, offset) != epoch

    async def _fetch(
        self, pull: Pull, raft_group: int, offset: int, wait_ms: int
    ) -> storage_pb2.FetchResponse | None:
        """Fetch once; None: the queue moved meanwhile, or the broker stops."""
        share = self._room.share(pull.topic.topic_id)
        room_bytes = share.ask(waits=wait_ms > 0)
        spread = self._reads.spread.begin(
            raft_group, pull.topic.topic_id, pull.group.consumer_group_id
        )
        request = storage_pb2.FetchRequest(
            raft_group=raft_group,
            topic_id=pull.topic.topic_id,
            queue=pull.queue,
            offset=offset,
            max_messages=pull.max_messages,
            max_bytes=room_bytes or self._config.pull.max_bytes,
            filter=pull.wanted,
            wait_ms=wait_ms,
            places_only=spread or not room_bytes,
        )
        try:
            async with self._attempts.of(_STOPPING), self._attempts.of(pull.topic.topic_id):
                return await self._read(request, pull.ends_s, share)
        except TimeoutError:
            return None
        finally:
            share.leave()

    async def _read(
        self, request: storage_pb2.FetchRequest, ends_s: float, share: AnswerShare
    ) -> storage_pb2.FetchResponse:
        """Fetch, and read the messages from a replica if only their places came."""
        raft_group, topic_id = request.raft_group, request.topic_id
        try:
            fetched = await self._fetch_from_leader(request, ends_s)
        except errors.UnreadableError:
            if request.places_only:
                raise
            # The leader says where the messages are, and another replica reads them.
            places = storage_pb2.FetchRequest()
            places.CopyFrom(request)
            places.places_only = True
            fetched = await self._fetch_from_leader(places, ends_s)
        if fetched.applied_index:
            await share.wait_for(sum(stored.message_length for stored in fetched.messages))
        if fetched.applied_index and not await self._reads.fill_fetched(
            raft_group, topic_id, fetched
        ):
            # The leader reports what is wrong with them.
            whole = storage_pb2.FetchRequest()
            whole.CopyFrom(request)
            whole.places_only = False
            fetched = await self._fetch_from_leader(whole, ends_s)
        size_bytes = sum(len(stored.message) for stored in fetched.messages)
        share.came(size_bytes)
        from_leader = not fetched.applied_index
        self._reads.spread.count(raft_group, topic_id, size_bytes, from_leader=from_leader)
        return fetched

    async def _fetch_from_leader(
        self, request: storage_pb2.FetchRequest, ends_s: float
    ) -> storage_pb2.FetchResponse:
        wait_s = request.wait_ms / 1000
        timeout_s = min(
            self._config.storage_client.call_timeout_ms / 1000,
            max(ends_s - self._clock.monotonic_s() - wait_s, 0.0),
        )
        return await self._storage.call(
            request.raft_group,
            "Fetch",
            request,
            storage_pb2.FetchResponse,
            timeout_s=timeout_s,
            wait_s=wait_s,
        )

    def _answer(self, pull: Pull, fetched: storage_pb2.FetchResponse | None) -> list[bytes]:
        """Return the answer; empty: there are no messages."""
        if fetched is None or not fetched.messages:
            return []
        responses = [wire.RECEIVE_OK]
        size_bytes = 0
        for stored in fetched.messages:
            size_bytes += len(stored.message)
            responses.append(
                shown_message(
                    pull.topic,
                    stored.message,
                    stored.store_time_ms,
                    self._store_host,
                    stored.queue,
                    stored.offset,
                )
            )
        responses.append(wire.next_offset(fetched.resume_offset))
        counts = (len(fetched.messages), 0)
        self._recorder.delivered(pull.topic, pull.group.name, (size_bytes, 0), counts)
        return responses

    # Offsets ------------------------------------------------------------------------------------

    async def get_offset(self, caller: Caller, request: service_pb2.GetOffsetRequest) -> int:
        """Return the offset that a consumer group stored for a queue.

        Raises:
            RequestError: TOPIC_NOT_FOUND, OFFSET_NOT_FOUND, or storage refused.
        """
        topic = self._topic(caller, request.message_queue.topic)
        queue = self._queue(topic, request.message_queue)
        group = self._view.consumer_group(*caller.name_of(request.group))
        if group is not None:
            states = await self.states.of_queue(group, topic, queue)
            if states and states[0].started:
                return states[0].cursor
        raise RequestError(Code.OFFSET_NOT_FOUND)

    async def update_offset(self, caller: Caller, request: service_pb2.UpdateOffsetRequest) -> None:
        """Store a consumer group's offset of a queue; outside the queue, the nearest end is stored.

        Every epoch of the queue gets the offset: older epochs are then consumed, newer ones not
        begun.

        Raises:
            RequestError: TOPIC_NOT_FOUND, ILLEGAL_OFFSET for a negative one, or storage refused.
        """
        topic = self._topic(caller, request.message_queue.topic)
        queue = self._queue(topic, request.message_queue)
        if request.offset < 0:
            raise IllegalOffset(request.offset, 0, "is negative; the least is")
        group = await self._group(caller, request.group, "UpdateOffset")
        await self._holders.of_queue(
            topic,
            queue,
            "ResetConsumer",
            storage_pb2.ResetConsumerResponse,
            lambda raft_group: storage_pb2.ResetConsumerRequest(
                raft_group=raft_group,
                consumer_group_id=group.consumer_group_id,
                topic=topic_ref(topic),
                offset=request.offset,
                queues=(queue,),
            ),
        )

    async def query_offset(self, caller: Caller, request: service_pb2.QueryOffsetRequest) -> int:
        """Return the first offset of a queue, the one behind its last, or the first since a time.

        Raises:
            RequestError: TOPIC_NOT_FOUND, BAD_REQUEST for no policy, or storage refused.
        """
        topic = self._topic(caller, request.message_queue.topic)
        queue = self._queue(topic, request.message_queue)
        policy = request.query_offset_policy
        time_ms = None
        if policy == definition_pb2.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise RequestError(Code.BAD_REQUEST, "no time: an offset by time needs one")
            time_ms = max(milliseconds(request.timestamp), 0)
        elif policy not in (definition_pb2.BEGINNING, definition_pb2.END):
            raise RequestError(Code.BAD_REQUEST, f"unknown offset policy {policy}")
        found = await self._offsets(topic, queue, time_ms)
        if policy == definition_pb2.END:
            return found[-1].next_offset
        first_of = (one.min_offset if time_ms is None else one.by_time for one in found)
        held = (
            first for first, one in zip(first_of, found, strict=True) if first < one.next_offset
        )
        return next(held, found[-1].next_offset)

    async def _offsets(
        self, topic: TopicRow, queue: int, time_ms: int | None
    ) -> Sequence[storage_pb2.QueueOffsets]:
        """Return the offsets of a queue's epochs, oldest first; at least one."""
        answers = await self._holders.of_queue(
            topic,
            queue,
            "GetOffsets",
            storage_pb2.GetOffsetsResponse,
            lambda raft_group: storage_pb2.GetOffsetsRequest(
                raft_group=raft_group, topic=topic_ref(topic), queues=(queue,), time_ms=time_ms
            ),
        )
        found = [one for _, answer in answers for one in answer.queues]
        return sorted(found, key=lambda one: one.next_offset) or [storage_pb2.QueueOffsets()]

    # Names --------------------------------------------------------------------------------------

    def _topic(self, caller: Caller, named: definition_pb2.Resource) -> TopicRow:
        topic = self._view.topic(*caller.name_of(named))
        if topic is not None and topic.is_table:
            topic = None
        if topic is None:
            raise topic_not_found(named.name)
        return topic

    def _queue(self, topic: TopicRow, named: definition_pb2.MessageQueue) -> int:
        home = self._view.home(topic, named.broker.name)
        if home is None or not 0 <= named.id < len(home.queues):
            raise RequestError(
                Code.TOPIC_NOT_FOUND,
                f"topic {topic.name} has no queue {named.id} under broker name {named.broker.name}",
            )
        return home.queues[named.id]

    async def _group(
        self, caller: Caller, named: definition_pb2.Resource, rpc: str
    ) -> meta_pb2.ConsumerGroup:
        try:
            return await self._provisioner.consumer_group_for_use(
                *caller.name_of(named), use_of(caller, rpc)
            )
        except RequestError as bad:
            if bad.code is Code.ILLEGAL_CONSUMER_GROUP:
                raise RequestError(Code.CONSUMER_GROUP_NOT_FOUND, bad.text) from bad
            raise

    def _filter(
        self, caller: Caller, expression: definition_pb2.FilterExpression
    ) -> storage_pb2.Filter:
        """Return a checked filter; no filter at all passes every message."""
        if not expression.type and expression.expression.strip() in ("", "*"):
            return storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL)
        return self._filters.of(expression, caller.client_id, caller.peer)


def _check_offset(offset: int, epoch: epochs.HeldEpoch, fetched: storage_pb2.FetchResponse) -> None:
    """Accept an offset that the queue has or will have next.

    Raises:
        IllegalOffset: the offset is outside the queue.
    """
    least = fetched.min_offset
    if epoch.end_offset is not None and fetched.next_offset <= offset:
        # Nothing of the epoch is left.
        least = epoch.end_offset
    if offset < least:
        raise IllegalOffset(offset, least, "is gone; the least is")
    if offset > fetched.next_offset:
        raise IllegalOffset(offset, fetched.next_offset, "is behind the queue's end, which is")
