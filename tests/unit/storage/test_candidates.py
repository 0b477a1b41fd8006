"""Candidates of pops: against the plain list of messages, in any layout."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_mq.layout.columns import pack_longs, pack_words
from strata_mq.layout.cq_rows import CqRow, encode_cq_row
from strata_mq.leases.queue_leases import QueueLeases, TakeRequest
from strata_storage.base.config import EngineOptions
from strata_storage.leading.pops.candidates import Candidates, ScanBudget
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.matches import Matches
from strata_storage.reads.reader import Location
from tests.unit.storage.serving_leader import unlimited_turns

KEY = (5, 7, 0)
LENGTH = 10
# Steps of a filter for one message.
STEPS = 3
TAGS = (11, 22)
DAMAGED = -1


@dataclass(frozen=True)
class Message:
    """One message of a queue; `kind` DAMAGED cannot be read, 1 is wanted, 0 is not."""

    tag: int
    kind: int


@dataclass
class Queue:
    """Runs of messages by base offset; offsets between them hold nothing."""

    runs: list[tuple[int, list[Message]]]
    end: int
    reads: Counter[int] = field(default_factory=Counter)

    def messages(self) -> dict[int, Message]:
        return {base + at: one for base, run in self.runs for at, one in enumerate(run)}

    # The machine's side.

    @property
    def consume_queues(self) -> Queue:
        return self

    def from_offset(self, topic_id: int, queue: int, offset: int) -> Iterator[tuple[int, CqRow]]:
        assert (topic_id, queue) == KEY[1:]
        for number, (base, run) in enumerate(self.runs):
            if base + len(run) > offset:
                count = len(run)
                columns = pack_words([LENGTH] * count) + pack_words([0] * count)
                columns += pack_longs([one.tag for one in run]) + pack_longs([0] * count)
                yield base, CqRow(encode_cq_row(0, number, 1, columns, count))

    # The reader's side.

    async def read(
        self, locations: Sequence[Location], consumer_group: int = 0
    ) -> list[bytes | None]:
        await asyncio.sleep(0)
        found: list[bytes | None] = []
        for location in locations:
            base, run = self.runs[location.raft_index]
            at = location.at // LENGTH
            self.reads[base + at] += 1
            kind = run[at].kind
            found.append(None if kind == DAMAGED else bytes((kind,)))
        return found


@dataclass(frozen=True)
class Wanted:
    """A filter on tags, kinds, or both."""

    tag_hashes: frozenset[int] | None
    needs_messages: bool

    def matches(self, message: bytes) -> bool:
        return message == b"\x01"

    def work(self, message: bytes) -> Generator[int, None, bool]:
        yield STEPS
        return self.matches(message)

    def wants(self, message: Message) -> bool:
        if self.tag_hashes is not None and message.tag not in self.tag_hashes:
            return False
        return not self.needs_messages or message.kind != 0


messages = st.builds(Message, st.sampled_from((0, *TAGS)), st.sampled_from((0, 0, 0, 1, DAMAGED)))


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    runs = []
    end = draw(st.integers(0, 5))
    for run in draw(st.lists(st.lists(messages, min_size=1, max_size=30), max_size=8)):
        runs.append((end, run))
        end += len(run) + draw(st.sampled_from((0, 0, 0, 4)))
    return Queue(runs, end)


wanted = st.builds(
    Wanted, st.sampled_from((None, frozenset(TAGS), frozenset(TAGS[:1]))), st.booleans()
)


class Consumer:
    """Pops as the leader does: read ahead, choose, take."""

    def __init__(self, queue: Queue, wanted: Wanted, options: EngineOptions) -> None:
        self._queue = queue
        self._wanted = wanted
        self._options = options
        self.lease_set = LeaseSet(KEY, QueueLeases(head=0))
        self.candidates = Candidates(queue, queue, unlimited_turns())  # type: ignore[arg-type]
        self.given: list[int] = []

    async def pop(self, max_messages: int) -> None:
        budget = ScanBudget(self._options)
        arguments = (self.lease_set, self._queue.end, self._wanted, max_messages, budget)
        if self._wanted.needs_messages:
            await self.candidates.read_ahead(*arguments)
        columns = self.candidates.columns(*arguments)
        request = TakeRequest(
            max_messages=max_messages,
            max_bytes=1 << 30,
            invisible_ms=30_000,
            auto_renew=False,
            holder=1,
            attempt=0,
            fifo=False,
            max_attempts=16,
            dead_letter_topic_id=9,
        )
        taken = self.lease_set.leases.take(request, 1_000, self._queue.end, columns)
        self.given += [offset for offset, _ in taken.leases]


small_budgets = st.builds(
    lambda offsets, messages, message_bytes, filter_steps: EngineOptions(
        pop_scan_offsets=offsets,
        pop_scan_messages=messages,
        pop_scan_bytes=message_bytes,
        pop_scan_filter_steps=filter_steps,
    ),
    st.sampled_from((1, 7, 4_096)),
    st.sampled_from((1, 5, 256)),
    st.sampled_from((1, 25, 1 << 20)),
    st.sampled_from((1, 3 * STEPS, 1 << 20)),
)


@settings(max_examples=100, deadline=None)
@given(
    queue=queues(),
    wanted=wanted,
    options=small_budgets,
    sizes=st.lists(st.sampled_from((1, 3, 32)), min_size=1, max_size=4),
)
def test_pops_give_every_wanted_message_once_in_order(
    queue: Queue, wanted: Wanted, options: EngineOptions, sizes: list[int]
) -> None:
    """Several pops at once come to the end of the queue, whatever the runs, gaps and budgets."""
    consumer = Consumer(queue, wanted, options)

    async def drain() -> None:
        for _ in range(queue.end + 2):
            await asyncio.gather(*[consumer.pop(size) for size in sizes])

    asyncio.run(drain())
    all_messages = queue.messages()
    assert consumer.given == [at for at, one in all_messages.items() if wanted.wants(one)]
    assert consumer.lease_set.leases.head == queue.end
    possible = replace(wanted, needs_messages=False)
    read = {at for at, one in all_messages.items() if possible.wants(one)}
    once = Counter(read if wanted.needs_messages else ())
    if options.pop_scan_filter_steps < STEPS * len(once):
        # The cost of a filter is known after the first turn only: the rest of it is read again.
        assert set(queue.reads) == set(once)
        assert max(queue.reads.values(), default=0) <= 2
    else:
        assert queue.reads == once


def whole_queue(kinds: str) -> Queue:
    """Return a queue of one run: `x` wanted, `.` not."""
    return Queue([(0, [Message(11, int(kind == "x")) for kind in kinds])], len(kinds))


async def test_one_look_keeps_to_its_budget() -> None:
    """So many offsets of the index, messages and bytes, and no more but to end a run."""
    queue = Queue([(at, [Message(0, 0)]) for at in range(100)], 100)
    options = EngineOptions(pop_scan_offsets=10, pop_scan_messages=7, pop_scan_bytes=1_000)
    by_tag = Consumer(queue, Wanted(frozenset(TAGS), needs_messages=False), options)
    await by_tag.pop(32)
    assert by_tag.lease_set.leases.head == 10
    by_message = Consumer(queue, Wanted(None, needs_messages=True), options)
    await by_message.pop(32)
    assert by_message.lease_set.leases.head == 7
    by_bytes = Consumer(
        queue, Wanted(None, needs_messages=True), replace(options, pop_scan_bytes=2 * LENGTH)
    )
    await by_bytes.pop(32)
    assert by_bytes.lease_set.leases.head == 2


async def test_what_was_read_ahead_is_kept_for_the_next_pop() -> None:
    """Messages that one pop had no room for are not read again."""
    queue = whole_queue("x" * 60)
    consumer = Consumer(queue, Wanted(None, needs_messages=True), EngineOptions())
    for _ in range(6):
        await consumer.pop(10)
    assert consumer.given == list(range(60))
    assert set(queue.reads.values()) == {1}


async def test_what_is_known_does_not_survive_a_reset_to_before_it() -> None:
    """A consumer group that goes back sees the messages again."""
    queue = whole_queue("..x..x")
    consumer = Consumer(queue, Wanted(None, needs_messages=True), EngineOptions())
    await consumer.pop(1)
    assert consumer.given == [2]
    consumer.lease_set.leases.reset(0)
    await consumer.pop(32)
    assert consumer.given == [2, 2, 5]


async def test_a_head_moved_by_another_filter_is_followed() -> None:
    """Reading goes on where the group is now, not where it was when the pop began to wait."""
    queue = whole_queue("x" * 20)
    consumer = Consumer(queue, Wanted(None, needs_messages=True), EngineOptions())
    lease_set = consumer.lease_set
    stale = Matches(Wanted(None, needs_messages=True), 0)
    lease_set.matches = stale
    await stale.reading.acquire()
    waiting = asyncio.ensure_future(consumer.pop(5))
    await asyncio.sleep(0)
    lease_set.leases.reset(15)
    stale.reading.release()
    await waiting
    assert consumer.given == list(range(15, 20))


async def test_a_consumer_group_at_its_limits_reads_nothing() -> None:
    """No message is read that could not be taken."""
    queue = whole_queue("x" * 20)
    consumer = Consumer(queue, Wanted(None, needs_messages=True), EngineOptions())
    consumer.lease_set.leases = QueueLeases(head=0, max_in_flight=0)
    await consumer.pop(5)
    assert (consumer.given, queue.reads) == ([], Counter())


def test_gaps_alone_move_the_head() -> None:
    """A queue whose last messages were given up ends where it says."""
    empty = Queue([], 9)
    consumer = Consumer(empty, Wanted(None, needs_messages=False), EngineOptions())
    everything = Wanted(None, needs_messages=False)
    (run,) = consumer.candidates.columns(
        consumer.lease_set, 9, everything, 1, ScanBudget(EngineOptions())
    )
    assert (run.base_offset, run.message_count, run.selected) == (0, 9, ())
