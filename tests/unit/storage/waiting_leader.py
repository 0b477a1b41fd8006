"""A leader's work on messages that wait, over rows in memory; the test commits and applies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import google_crc32c

from strata_mq.commands.common import CommandKind
from strata_mq.commands.pending import ResolveCommand, ResolveItem, decode_resolve
from strata_mq.commands.rare import (
    DropCommand,
    DropKind,
    OwnCommand,
    SlotGrant,
    encode_drop,
    encode_own,
)
from strata_mq.layout.batch import BatchBuilder, OutgoingMessage, PartKey, PartKind
from strata_mq.layout.pending_rows import PendingKey, PendingRef
from strata_multiraft.base.errors import NotLeader, Overloaded
from strata_raft.types import Entry, EntryKind
from strata_runtime.metrics import Metrics
from strata_runtime.stalls import OwnStalls
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_storage.base.config import EngineOptions, PendingOptions
from strata_storage.base.watchers import Watchers
from strata_storage.leading.appends.append import AppendResult, GroupAppender
from strata_storage.leading.pending.check_routes import CheckRoutes
from strata_storage.leading.pending.forwarding import QueueForwarder
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.pending import Pending, PendingPorts
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.term_leases import TermLeases
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import Payload, Proposer
from strata_storage.process.metrics import METRICS
from strata_storage.reads.reader import LogReaders, MessageReader
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.payloads import PayloadReader
from strata_testing import ManualClock

GROUP, TOPIC_ID, QUEUES, DEAD_LETTER_TOPIC_ID = 3, 7, 4, 9
NOW_MS = 1_700_000_000_000

Result = TypeVar("Result")


class FakeReplica:
    """Keeps proposals; a leader until it is told otherwise."""

    read_only = ""
    disk_mark = 0
    is_handing_over = False
    installing = False
    leader_replica_id = 1

    def __init__(self) -> None:
        self.proposed: list[tuple[Payload, asyncio.Future[int]]] = []
        self.is_full = False

    def is_ready_leader(self) -> bool:
        return True

    def is_sole(self) -> bool:
        return True

    def propose(self, payload: Payload) -> asyncio.Future[int]:
        if self.is_full:
            raise Overloaded("too many proposals")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.proposed.append((payload, future))
        return future

    async def read_barrier(self) -> int:
        return 0

    async def applied(self, index: int) -> None:
        assert index >= 0


class MemoryLog:
    """The entries of one replica, all of them recent."""

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}

    def recent(self, replica_id: int, index: int) -> bytes | None:
        return self.payloads.get(index)

    def entry(self, replica_id: int, index: int) -> None:
        return None

    def read_slice(self, replica_id: int, index: int, offset: int, length: int) -> bytes:
        return self.payloads[index][offset : offset + length]


async def run_here(work: Callable[[], Result]) -> Result:
    return work()


class LeaderUnderTest:
    """One leader in one term; what it proposes is committed and applied when the test says so."""

    def __init__(
        self, options: PendingOptions | None = None, forwarder: QueueForwarder | None = None
    ) -> None:
        self.clock = ManualClock(0.0, wall_offset_ms=NOW_MS)
        self.replica = FakeReplica()
        self.log = MemoryLog()
        self.index = 0
        store = self.store = MemoryStore()
        self._options = EngineOptions(pending=options or PendingOptions())
        self._forwarder = forwarder
        self.machine = GroupMachine(
            store,
            GROUP,
            Flusher(store, run_here),
            options=EngineOptions(
                queue_rows_max=100, cq_cache_bytes=1_000_000, broker_row_age_ms=1
            ),
            on_leader=lambda term: None,
            on_follower=lambda term, leader: None,
        )
        self.apply(encode_own(OwnCommand([SlotGrant(0, 4096, True)])))
        self.metrics = Metrics()
        self.metrics.declare(METRICS)
        self.watchers = Watchers()
        self.became: list[PendingKey] = []
        self.lead()
        self.machine.listener = self

    def lead(self) -> None:
        """Begin a term; what an earlier one had in memory is gone."""
        self.routes = CheckRoutes(self.watchers, 100, OwnStalls(0.1))
        self.proposer = Proposer(self.replica, self.clock, NOW_MS)
        self.appender = GroupAppender(self.machine, self.proposer, self._options)
        self.waiters = Waiters(10, 1_000)
        self.sets = LeaseSets(self.machine, self.proposer, 10)
        self.pending = Pending(
            self.machine,
            self.proposer,
            self.appender,
            leases=TermLeases(self.sets, self.waiters),
            readers=LogReaders(
                MessageReader(self.log, 1, run_here, on_corrupt=lambda index: None),
                PayloadReader(self.log, 1, run_here),
            ),
            clock=self.clock,
            options=self._options.pending,
            ports=PendingPorts(
                self.routes, self._forwarder, run_here, PendingInstruments(self.metrics)
            ),
        )
        self.resolver = self.pending.resolver
        self.transactions = self.pending.transactions
        self.recalls = self.pending.recalls
        self.timers = self.pending.timers

    # AppliedListener

    def on_applied(self, index: int) -> None:
        self.proposer.on_applied(index)

    def on_appended(self, topic_id: int, queue: int) -> None:
        pass

    def on_pending(self, became: Sequence[tuple[PendingKey, PartKind]]) -> None:
        self.became += [key for key, _ in became]
        self.timers.added(became)

    def on_trimmed(self, topic_id: int, queue: int, min_offset: int) -> None:
        pass

    def on_sealed(self, topic_id: int, queue: int) -> None:
        pass

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        self.timers.recount()

    # Calls of the test

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def apply(self, *payload: bytes) -> int:
        """Commit and apply an entry that this leader did not propose."""
        self.index += 1
        self.log.payloads[self.index] = b"".join(payload)
        self.machine.apply([Entry(1, self.index, EntryKind.NORMAL, payload)])
        return self.index

    def commit(self, count: int | None = None) -> None:
        """Commit and apply what was proposed, or the first `count` of it."""
        count = len(self.replica.proposed) if count is None else count
        decided, self.replica.proposed = (
            self.replica.proposed[:count],
            self.replica.proposed[count:],
        )
        for payload, future in decided:
            future.set_result(self.index + 1)
            self.apply(*payload)

    def lose(self) -> None:
        """Lose leadership: nothing that was proposed is known to be committed."""
        lost, self.replica.proposed = self.replica.proposed, []
        self.timers.end()
        for _, future in lost:
            future.set_exception(NotLeader(2))
        self.proposer.drop()

    def submit(
        self,
        bodies: Sequence[bytes],
        due_ms: int | Sequence[int] = 0,
        kind: PartKind = PartKind.PLAIN,
        *,
        queue: int = -1,
        topic_id: int = TOPIC_ID,
    ) -> AppendResult:
        """Propose an append of one part."""
        builder = BatchBuilder(google_crc32c.value)
        dues = [due_ms] * len(bodies) if isinstance(due_ms, int) else due_ms
        messages = [
            OutgoingMessage(body, google_crc32c.value(body), 0, 0, id_of(body), 1, NOW_MS, (), due)
            for body, due in zip(bodies, dues, strict=True)
        ]
        builder.add(PartKey(topic_id, queue, 0, QUEUES, kind), messages)
        return self.appender.submit(builder.build(), 0, 0)

    def wait_for(
        self,
        body: bytes,
        after_ms: int,
        kind: PartKind = PartKind.DELAYED,
        *,
        queue: int = -1,
        topic_id: int = TOPIC_ID,
    ) -> PendingRef:
        """Store a message that waits; return its name."""
        due_ms = self.now_ms() + after_ms
        self.submit([body], due_ms, kind, queue=queue, topic_id=topic_id)
        self.commit()
        return PendingRef(self.index, 0)

    def half(self, body: bytes = b"half") -> PendingRef:
        """Store a half message that is to be checked after 6 s."""
        return self.wait_for(body, 6_000, PartKind.HALF)

    def drop_topic(self, topic_id: int = TOPIC_ID) -> None:
        self.apply(encode_drop(DropCommand(DropKind.TOPIC, topic_id)))

    def resolves(self) -> list[ResolveCommand]:
        """Return the RESOLVE commands that are proposed and not committed."""
        return [
            decode_resolve(payload[0])
            for payload, _ in self.replica.proposed
            if payload[0][0] == CommandKind.RESOLVE
        ]

    def next_offsets(self, topic_id: int = TOPIC_ID) -> dict[int, int]:
        """Return next offsets of the topic's queues that have messages."""
        return {
            queue: row.next_offset for queue, row in self.machine.rows.queues.of_topic(topic_id)
        }

    def count(self, result: str) -> float:
        """How many messages stopped waiting in a way."""
        return self.metrics.counter("strata_storage_resolved_total").value({"result": result})


def id_of(body: bytes) -> bytes:
    """Return a message's id."""
    return b"\x01" + (b"\x00" * 16 + body)[-16:]


async def start(work: Coroutine[object, object, Result]) -> asyncio.Task[Result]:
    """Start a call; it decides before this returns, and its decision is proposed."""
    task = asyncio.ensure_future(work)
    await turns()
    return task


async def turns() -> None:
    """Let whatever can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


QUICK = PendingOptions(turn_interval_ms=0, retry_ms=0)


@asynccontextmanager
async def running(leader: LeaderUnderTest) -> AsyncIterator[None]:
    """Run the timer of a leader."""
    task = asyncio.ensure_future(leader.timers.run())
    await turns()
    try:
        yield
    finally:
        leader.timers.end()
        await asyncio.wait_for(task, 60)


async def let_pass(leader: LeaderUnderTest, seconds: float) -> None:
    """Move the clock and let the timer look."""
    leader.clock.advance(seconds)
    leader.timers.wake()
    await turns()


def proposed(leader: LeaderUnderTest) -> list[ResolveItem]:
    return [item for command in leader.resolves() for item in command.items]
