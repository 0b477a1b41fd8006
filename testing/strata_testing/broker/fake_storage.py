"""A storage node in memory: small, real, and strict about what it is given."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import google_crc32c
from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import TOO_LARGE, UNKNOWN_METHOD, AngeliaError
from strata_mq.filters import FilterKind, parse_filter
from strata_mq.layout import BatchView, PartKey, PartKind, pack_message_id
from strata_mq.slots import SLOT_COUNT
from strata_testing import until
from strata_testing.broker.fake_meta import NODE, RAFT_GROUPS
from strata_testing.broker.fake_pending import STORED_MS, FakePending, Pending
from strata_testing.broker.fake_taken import FakeTaken
from strata_testing.broker.fake_telling import FakeTelling, first_of


class Stored(NamedTuple):
    """A message as storage has it."""

    data: bytes
    message_id: bytes
    tag_hash: int


class FakeStorage(FakeTelling):
    """`strata.storage.v1` of one node that leads all raft groups."""

    def __init__(self, slots: list[int]) -> None:
        super().__init__()
        self.slots = slots
        self.calls: list[tuple[str, Message]] = []
        self.queues: dict[tuple[int, int], list[Stored]] = defaultdict(list)
        # Where queues begin; 0 if they are not here.
        self.purged: dict[tuple[int, int], int] = {}
        # (raft group, topic, message id) -> (queue, offset): raft groups know their own ids.
        self.ids: dict[tuple[int, int, bytes], tuple[int, int]] = {}
        self.appended: dict[tuple[int, int, int], tuple[bytes, storage_pb2.GroupResult]] = {}
        self.last_sequence: dict[tuple[int, int], int] = {}
        # (consumer group, topic, queue) -> next offset; leases by (..., offset) -> lease number
        self.heads: dict[tuple[int, int, int], int] = defaultdict(int)
        self.leases: dict[tuple[int, int, int, int], int] = {}
        self.waiting: deque[tuple[int, int, int, int]] = deque()
        self.taken = FakeTaken()
        # How many of a message's leases were released because nobody was given it.
        self.undelivered: dict[tuple[int, int, int, int], int] = defaultdict(int)
        # Answers of the next calls of an RPC instead: a refusal, or a failure.
        self.trouble: dict[str, deque[storage_pb2.Refusal | AngeliaError]] = defaultdict(deque)
        # Calls of one RPC wait for it.
        self.gate: asyncio.Event | None = None
        self.gated_rpc = "Append"
        self.pop_gate: asyncio.Event | None = None
        # Raft groups that commit nothing, and what one Append may hold (0: whatever it is).
        self.slow: set[int] = set()
        self.store_time_ms = STORED_MS
        self.append_max_bytes = 0
        self.park = False
        # Numbers of pops whose client has gone.
        self.ended: set[int] = set()
        self.parked = 0
        self.clients: dict[int, set[int]] = {}
        self.turn = 0
        # (topic, queue) -> smallest queue count by which message groups are put there; queues that
        # somebody has not consumed take any.
        self.queue_counts: dict[tuple[int, int], int] = {}
        self.unconsumed: set[tuple[int, int]] = set()
        # (raft group, topic) -> consumer groups that read there.
        self.consumers: dict[tuple[int, int], list[int]] = {}
        self.pending = FakePending(self._place)
        # The next messages of the watch stream.
        self.checks: asyncio.Queue[storage_pb2.WatchResponse] = asyncio.Queue()
        self.on_transfer: Callable[[storage_pb2.TransferLeadershipRequest], None]

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """See `strata_angelia.ports.Channel`."""
        assert timeout_s is not None, "every call has a deadline"
        assert timeout_s > 0, "no call is made after its deadline"
        rpc = method.removeprefix("/strata.storage.v1.StorageService/")
        self.calls.append((rpc, request))
        if self.gate is not None and rpc == self.gated_rpc:
            await self.gate.wait()
        handler: Callable[..., object] = getattr(self, f"_{rpc.lower()}")
        trouble = self.trouble[rpc].popleft() if self.trouble[rpc] else None
        if isinstance(trouble, AngeliaError):
            raise trouble
        response = handler(request, trouble)
        if asyncio.iscoroutine(response):
            response = await response
        assert isinstance(response, response_type)
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        """See `strata_angelia.ports.Channel`: it leads everything, as long as it lives."""
        if not method.endswith("/Watch"):
            raise AngeliaError(UNKNOWN_METHOD, method)
        assert isinstance(request, storage_pb2.WatchRequest)
        yield storage_pb2.WatchResponse(led_groups=RAFT_GROUPS)
        with self.telling(request) as told:
            while True:
                yield await first_of(self.checks, told)

    async def close(self) -> None:
        """See `strata_angelia.ports.Channel`."""

    @property
    def reports(self) -> list[storage_pb2.ReportClientsRequest]:
        """Return the reports about clients."""
        return [
            request
            for _, request in self.calls
            if isinstance(request, storage_pb2.ReportClientsRequest)
        ]

    def count(self, rpc: str) -> int:
        """How many calls of an RPC came."""
        return sum(name == rpc for name, _ in self.calls)

    async def called(self, rpc: str) -> None:
        """Wait until an RPC came; bounded by the test's own timeout."""
        await until(lambda: self.count(rpc) > 0)

    def messages(self, topic_id: int) -> list[Stored]:
        """All messages of a topic, by queue and offset."""
        keys = sorted(key for key in self.queues if key[0] == topic_id)
        return [stored for key in keys for stored in self.queues[key]]

    def _append(
        self, request: storage_pb2.AppendRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.AppendResponse:
        groups = [batch.raft_group for batch in request.batches]
        assert len(groups) == len(set(groups)), "one batch per raft group and call"
        response = storage_pb2.AppendResponse()
        if self.append_max_bytes and request.ByteSize() > self.append_max_bytes:
            raise AngeliaError(TOO_LARGE, "too many bytes for one call")
        for batch in request.batches:
            if batch.raft_group in self.slow:
                trouble = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_TIMEOUT)
            if trouble is not None:
                response.results.add(raft_group=batch.raft_group, refusal=trouble)
                trouble = None if batch.raft_group in self.slow else trouble
                continue
            response.results.append(self._append_one(request.broker_boot_id, batch))
        return response

    def _append_one(self, boot_id: int, batch: storage_pb2.GroupBatch) -> storage_pb2.GroupResult:
        key = (boot_id, batch.raft_group, batch.sequence)
        if key in self.appended:
            data, result = self.appended[key]
            assert data == batch.batch, "a repeat is byte-identical"
            return result
        last = self.last_sequence.get(key[:2], 0)
        assert batch.sequence == last + 1, "sequences count up by one"
        self.last_sequence[key[:2]] = batch.sequence
        view = BatchView(batch.batch, google_crc32c.value)
        result = storage_pb2.GroupResult(
            raft_group=batch.raft_group, store_time_ms=self.store_time_ms
        )
        for part in view.parts:
            result.parts.append(self._append_part(batch.raft_group, view, part))
        self.appended[key] = (batch.batch, result)
        self.came()
        return result

    def _append_part(
        self, raft_group: int, view: BatchView, part: object
    ) -> storage_pb2.PartResult:
        key = part.key  # type: ignore[attr-defined]
        if key.kind is not PartKind.PLAIN:
            return self.pending.append_part(raft_group, view, part)  # type: ignore[arg-type]
        owned = [
            queue
            for queue in range(key.queue_count)
            if self.slots[(key.slot_base + queue) % SLOT_COUNT] == raft_group
        ]
        queue = key.queue
        if queue == -1 and owned:
            self.turn += 1
            queue = owned[self.turn % len(owned)]
        if queue not in owned:
            return storage_pb2.PartResult(outcome=storage_pb2.OUTCOME_WRONG_GROUP)
        if key.queue >= 0 and key.queue_count < self.queue_counts.get((key.topic_id, queue), 0):
            return storage_pb2.PartResult(queue=queue, outcome=storage_pb2.OUTCOME_REHASHED)
        rows = self.queues[key.topic_id, queue]
        result = storage_pb2.PartResult(
            queue=queue, base_offset=len(rows), outcome=storage_pb2.OUTCOME_OK
        )
        at = part.messages_at  # type: ignore[attr-defined]
        first, count = part.first, part.count  # type: ignore[attr-defined]
        tag_hashes = view.tag_hashes(first, count)
        for number, length in enumerate(view.lengths(first, count)):
            message_id = view.message_id(first + number)
            known = self.ids.get((raft_group, key.topic_id, message_id))
            if known is not None:
                result.duplicates.add(ordinal=number, queue=known[0], offset=known[1])
            else:
                self.ids[raft_group, key.topic_id, message_id] = (queue, len(rows))
                data = view.data[at : at + length]
                rows.append(Stored(data, message_id, tag_hashes[number]))
            at += length
        return result

    def _place(self, key: PartKey, pending: Pending) -> tuple[int, int]:
        queue = max(key.queue, 0)
        rows = self.queues[key.topic_id, queue]
        rows.append(Stored(pending.data, pending.message_id, 0))
        self.came()
        return queue, len(rows) - 1

    def _endtransaction(
        self, request: storage_pb2.EndTransactionRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.EndTransactionResponse:
        if trouble is not None:
            return storage_pb2.EndTransactionResponse(refusal=trouble)
        return self.pending.end(request)

    def _recall(
        self, request: storage_pb2.RecallRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.RecallResponse:
        if trouble is not None:
            return storage_pb2.RecallResponse(refusal=trouble)
        return self.pending.recall(request)

    def _listpending(
        self, request: storage_pb2.ListPendingRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.ListPendingResponse:
        return self.pending.list(request)

    async def _pop(
        self, request: storage_pb2.PopRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.PopResponse:
        if trouble is not None:
            return storage_pb2.PopResponse(refusal=trouble)
        if self.pop_gate is not None:
            await self.pop_gate.wait()
        while True:
            response = storage_pb2.PopResponse()
            if self.taken.again(request, self.leases, response) or request.number in self.ended:
                return response
            for queue in self._readable(request):
                self._take(request, queue, response)
            if not response.messages and not self.park:
                response.told_later = self.arm(request)
            if response.messages or not self.park:
                return response
            self.arrived.clear()
            self.parked += 1
            try:
                await self.arrived.wait()
            finally:
                self.parked -= 1

    def _endpops(
        self, request: storage_pb2.EndPopsRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.EndPopsResponse:
        self.ended.update(request.numbers)
        self.arrived.set()
        return storage_pb2.EndPopsResponse()

    def _readable(self, request: storage_pb2.PopRequest) -> list[int]:
        if request.queue >= 0:
            return [request.queue]
        return [
            queue
            for queue in range(request.topic.queue_count)
            if self.slots[(request.topic.slot_base + queue) % SLOT_COUNT] == request.raft_group
        ]

    def _take(
        self, request: storage_pb2.PopRequest, queue: int, response: storage_pb2.PopResponse
    ) -> None:
        key = (request.consumer_group_id, request.topic.topic_id, queue)
        wanted = parse_filter(FilterKind(request.filter.kind), request.filter.expression)
        for taken in [lease for lease in self.waiting if lease[:3] == key]:
            if len(response.messages) < request.max_messages:
                self.waiting.remove(taken)
                self._lease(key, taken[3], request, response)
        rows = self.queues[key[1], queue]
        while self.heads[key] < len(rows) and len(response.messages) < request.max_messages:
            offset = self.heads[key]
            self.heads[key] += 1
            if wanted.matches(rows[offset].data):
                self._lease(key, offset, request, response)

    def _lease(
        self,
        key: tuple[int, int, int],
        offset: int,
        request: storage_pb2.PopRequest,
        response: storage_pb2.PopResponse,
    ) -> None:
        number = self.leases.get((*key, offset), 0) + 1
        self.leases[*key, offset] = number
        leased = response.messages.add(
            queue=key[2],
            offset=offset,
            attempt_count=number - self.undelivered[*key, offset],
            lease_number=number,
            visible_at_ms=0 if request.auto_renew else 1_700_000_000_000 + request.invisible_ms,
            store_time_ms=1_700_000_000_123,
            message=self.queues[key[1], key[2]][offset].data,
        )
        self.taken.add(request.attempt, (*key, offset), leased)

    def _ack(
        self, request: storage_pb2.AckRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.AckResponse:
        response = storage_pb2.AckResponse()
        for group in request.groups:
            outcomes = response.groups.add(raft_group=group.raft_group)
            if trouble is not None:
                outcomes.refusal.CopyFrom(trouble)
                continue
            for lease in group.leases:
                outcomes.outcomes.append(self._ack_one(lease))
        return response

    def _ack_one(self, lease: storage_pb2.LeaseRef) -> storage_pb2.Outcome.ValueType:
        key = (lease.consumer_group_id, lease.topic_id, lease.queue, lease.offset)
        if self.leases.get(key) != lease.lease_number:
            return storage_pb2.OUTCOME_INVALID_HANDLE
        del self.leases[key]
        return storage_pb2.OUTCOME_OK

    def _release(
        self, request: storage_pb2.ReleaseRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.ReleaseResponse:
        if trouble is not None:
            return storage_pb2.ReleaseResponse(refusal=trouble)
        released = 0
        for lease in request.undelivered:
            key = (lease.consumer_group_id, lease.topic_id, lease.queue, lease.offset)
            if self.leases.get(key) == lease.lease_number and key not in self.waiting:
                self.waiting.append(key)
                self.undelivered[key] += 1
                released += 1
        self.came()
        return storage_pb2.ReleaseResponse(released=released)

    def _changeinvisible(
        self, request: storage_pb2.ChangeInvisibleRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.ChangeInvisibleResponse:
        lease = request.lease
        key = (lease.consumer_group_id, lease.topic_id, lease.queue, lease.offset)
        if trouble is None and self.leases.get(key) != lease.lease_number:
            trouble = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_INVALID_HANDLE)
        if trouble is not None:
            return storage_pb2.ChangeInvisibleResponse(refusal=trouble)
        self.leases[key] += 1
        changed = storage_pb2.LeaseRef()
        changed.CopyFrom(lease)
        changed.lease_number = self.leases[key]
        changed.visible_at_ms = 1_700_000_000_000 + request.invisible_ms
        if not request.invisible_ms:
            self.waiting.append(key)
        return storage_pb2.ChangeInvisibleResponse(lease=changed)

    def _forwardtodeadletter(
        self, request: storage_pb2.ForwardToDeadLetterRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.ForwardToDeadLetterResponse:
        lease = request.lease
        outcome = self._ack_one(lease)
        if outcome != storage_pb2.OUTCOME_OK:
            refusal = storage_pb2.Refusal(outcome=outcome)
            return storage_pb2.ForwardToDeadLetterResponse(refusal=refusal)
        stored = self.queues[lease.topic_id, lease.queue][lease.offset]
        self.queues[request.dead_letter_topic_id, request.raft_group].append(stored)
        return storage_pb2.ForwardToDeadLetterResponse()

    def _reportclients(
        self, request: storage_pb2.ReportClientsRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.ReportClientsResponse:
        if request.broker_boot_id not in self.clients and not request.full:
            return storage_pb2.ReportClientsResponse(want_full=True)
        known = set() if request.full else self.clients[request.broker_boot_id]
        left = set(request.gone) | set(request.silent)
        self.clients[request.broker_boot_id] = (known | set(request.live)) - left
        return storage_pb2.ReportClientsResponse()

    def _getoffsets(
        self, request: storage_pb2.GetOffsetsRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.GetOffsetsResponse:
        response = storage_pb2.GetOffsetsResponse()
        pop = storage_pb2.PopRequest(raft_group=request.raft_group, topic=request.topic, queue=-1)
        for queue in request.queues or self._readable(pop):
            rows = self.queues[request.topic.topic_id, queue]
            begin = self.purged.get((request.topic.topic_id, queue), 0)
            response.queues.add(queue=queue, min_offset=begin, next_offset=len(rows))
        return response

    def _purge(
        self, request: storage_pb2.PurgeRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.PurgeResponse:
        deleted = 0
        for start in request.starts:
            key = (request.topic.topic_id, start.queue)
            begin = self.purged.get(key, 0)
            self.purged[key] = max(begin, min(start.offset, len(self.queues[key])))
            deleted += self.purged[key] - begin
        return storage_pb2.PurgeResponse(deleted_messages=deleted)

    def _getconsumerstate(
        self, request: storage_pb2.GetConsumerStateRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.GetConsumerStateResponse:
        response = storage_pb2.GetConsumerStateResponse()
        pop = storage_pb2.PopRequest(raft_group=request.raft_group, topic=request.topic, queue=-1)
        for queue in self._readable(pop):
            key = (request.consumer_group_id, request.topic.topic_id, queue)
            offsets = [lease[3] for lease in self.leases if lease[:3] == key]
            response.queues.add(
                queue=queue,
                next_offset=len(self.queues[key[1], queue]),
                head=self.heads[key],
                cursor=min(offsets, default=self.heads[key]),
                in_flight=len(offsets),
            )
        return response

    def _getconsumertopics(
        self, request: storage_pb2.GetConsumerTopicsRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.GetConsumerTopicsResponse:
        keys = [key for key, head in self.heads.items() if head]
        topic_ids = {key[1] for key in keys if key[0] == request.consumer_group_id}
        return storage_pb2.GetConsumerTopicsResponse(topic_ids=sorted(topic_ids))

    def _getconsumers(
        self, request: storage_pb2.GetConsumersRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.GetConsumersResponse:
        if trouble is not None:
            return storage_pb2.GetConsumersResponse(refusal=trouble)
        found = self.consumers.get((request.raft_group, request.topic_id), ())
        return storage_pb2.GetConsumersResponse(consumer_group_ids=found)

    def _resetconsumer(
        self, request: storage_pb2.ResetConsumerRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.ResetConsumerResponse:
        assert request.WhichOneof("to") == "earliest"
        state = storage_pb2.GetConsumerStateRequest(
            raft_group=request.raft_group,
            consumer_group_id=request.consumer_group_id,
            topic=request.topic,
        )
        for queue in self._getconsumerstate(state, None).queues:
            key = (request.consumer_group_id, request.topic.topic_id, queue.queue)
            self.heads[key] = 0
            for lease in [lease for lease in self.leases if lease[:3] == key]:
                del self.leases[lease]
        return storage_pb2.ResetConsumerResponse(queues=self._getconsumerstate(state, None).queues)

    def _query(
        self, request: storage_pb2.QueryRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.QueryResponse:
        response = storage_pb2.QueryResponse()
        if request.WhichOneof("by") == "message_id":
            packed = pack_message_id(request.message_id)
            place = self.ids.get((request.raft_group, request.topic_id, packed))
            if place is not None:
                response.messages.add(queue=place[0], offset=place[1])
            return response
        if request.WhichOneof("by") == "position":
            rows = self.queues[request.topic_id, request.position.queue]
            if request.position.offset < len(rows):
                response.messages.add(
                    queue=request.position.queue,
                    offset=request.position.offset,
                    message=rows[request.position.offset].data,
                )
        return response

    def _rehash(
        self, request: storage_pb2.RehashRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.RehashResponse:
        if trouble is not None:
            return storage_pb2.RehashResponse(refusal=trouble)
        key = (request.topic.topic_id, request.queue)
        if key in self.unconsumed:
            return storage_pb2.RehashResponse()
        if not request.ended:
            self.queue_counts[key] = request.topic.queue_count
        return storage_pb2.RehashResponse(done=True)

    def _drop(
        self, request: storage_pb2.DropRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.DropResponse:
        if trouble is not None:
            return storage_pb2.DropResponse(refusal=trouble)
        for key in [key for key in self.queues if key[0] == request.topic_id]:
            del self.queues[key]
        return storage_pb2.DropResponse()

    def _transferleadership(
        self, request: storage_pb2.TransferLeadershipRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.TransferLeadershipResponse:
        self.on_transfer(request)
        return storage_pb2.TransferLeadershipResponse()

    def _getstatus(
        self, _: storage_pb2.GetStatusRequest, __: storage_pb2.Refusal | None
    ) -> storage_pb2.GetStatusResponse:
        response = storage_pb2.GetStatusResponse(node_id=NODE)
        for raft_group in RAFT_GROUPS:
            response.replicas.add(
                raft_group=raft_group, state=storage_pb2.REPLICA_STATE_SERVING, leader=True
            )
        return response
