"""Any history of messages that wait, against a model that is a few dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_mq.commands.pending import ResolveItem, deliver, discard, reschedule
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import PendingKey, PendingRef, PendingRow, PinRow
from strata_raft import Entry
from strata_state.memory_store import MemoryStore
from strata_storage.leading.pin_sweep import PinSweep
from strata_storage.upkeep.retention import FixedRetention, TrimTerms, plan_trims
from tests.unit.storage.pending_entries import (
    START_MS,
    TOPIC_ID,
    Log,
    machine_of,
    message,
    part_key,
)

QUEUES = 3
SECOND_MS = 1_000


@dataclass
class Model:
    """Outcome that a history must lead to."""

    now_ms: int = START_MS
    numbers: int = 0
    # Name -> (number, due time, checks).
    waiting: dict[PendingRef, tuple[int, int, int]] = field(default_factory=dict)
    kinds: dict[PendingRef, PartKind] = field(default_factory=dict)
    # Numbers by offset; None: nothing there.
    queues: list[list[int | None]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    stored_ms: list[list[int]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    placed: dict[PendingRef, tuple[int, int]] = field(default_factory=dict)
    min_offsets: list[int] = field(default_factory=lambda: [0] * QUEUES)


class History:
    """Does random things to a log and to the model."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.log = Log()
        self.model = Model()

    def step(self) -> None:
        """Do one thing."""
        self.model.now_ms += self.rng.randrange(3) * SECOND_MS
        actions = (self._store, self._store, self._resolve, self._resolve, self._retract)
        self.rng.choice(actions)()

    def _store(self) -> None:
        model, rng = self.model, self.rng
        parts = []
        ordinal = 0
        index = self.log.next_index
        kinds = rng.sample((PartKind.PLAIN, PartKind.DELAYED, PartKind.HALF), rng.randrange(1, 4))
        for kind in kinds:
            messages = []
            for _ in range(rng.randrange(1, 4)):
                model.numbers += 1
                due_ms = model.now_ms + rng.randrange(20) * SECOND_MS
                messages.append(message(model.numbers, due_ms, keys=[model.numbers]))
                if kind:
                    model.waiting[PendingRef(index, ordinal)] = (model.numbers, due_ms, 0)
                    model.kinds[PendingRef(index, ordinal)] = kind
                else:
                    model.queues[0].append(model.numbers)
                    model.stored_ms[0].append(model.now_ms)
                ordinal += 1
            parts.append((part_key(kind), messages))
        self.log.append(*parts, now_ms=model.now_ms)

    def _resolve(self) -> None:
        rng = self.rng
        refs = sorted(self.model.waiting)
        first = rng.randrange(len(refs) + 1)
        some = refs[first : first + rng.randrange(1, 6)]
        if rng.random() < 0.3:
            rng.shuffle(some)
        if some:
            queue = rng.randrange(QUEUES)
            items = [self._item(ref, queue if rng.random() < 0.8 else 0) for ref in some]
            self.log.resolve(*items, now_ms=self.model.now_ms)

    def _item(self, ref: PendingRef, queue: int) -> ResolveItem:
        model = self.model
        number, due_ms, checks = model.waiting.pop(ref)
        key = PendingKey(due_ms, *ref)
        what = self.rng.random()
        if what < 0.2:
            return discard(key, TOPIC_ID)
        if what < 0.4:
            later = due_ms + self.rng.randrange(20) * SECOND_MS
            model.waiting[ref] = (number, later, checks + 1)
            return reschedule(key, TOPIC_ID, later, checks + 1)
        row = self.log.machine.rows.pending.get(key)
        assert row is not None
        offset = len(model.queues[queue])
        model.queues[queue].append(number)
        model.stored_ms[queue].append(model.now_ms)
        model.placed[ref] = (queue, offset)
        return deliver(key, row, TOPIC_ID, queue, offset)

    def _retract(self) -> None:
        model, rng = self.model, self.rng
        queue = rng.randrange(QUEUES)
        there = [
            offset
            for offset, number in enumerate(model.queues[queue])
            if number is not None and offset >= model.min_offsets[queue]
        ]
        some = rng.sample(there, min(len(there), rng.randrange(1, 4)))
        if some:
            self.log.retract(*((TOPIC_ID, queue, offset) for offset in some))
            for offset in some:
                model.queues[queue][offset] = None

    async def trim(self, sweep: PinSweep) -> None:
        """Let retention work: everything older than 10 s goes."""
        model = self.model
        retention = FixedRetention(10 * SECOND_MS)
        terms = TrimTerms(model.now_ms, 0, queues_max=2)
        async for command in plan_trims(self.log.machine, retention, sweep, terms=terms):
            self.log.trim(command)
            assert len(command.queues) <= 2
            for _, queue, min_offset in command.queues:
                kept = model.stored_ms[queue][min_offset:]
                assert all(at >= model.now_ms - 10 * SECOND_MS for at in kept)
                model.min_offsets[queue] = min_offset

    def check(self) -> None:
        """Compare every row with the model."""
        model, rows = self.model, self.log.machine.rows
        waiting = dict(rows.pending.scan())
        assert {
            key.ref: (row.tag_hash, key.due_ms, row.checks) for key, row in waiting.items()
        } == (model.waiting)
        pins = dict(rows.pins.scan())
        for ref, (_, due_ms, _) in model.waiting.items():
            assert pins.pop(ref) == PinRow.pending(model.kinds[ref], TOPIC_ID, due_ms)
        for ref, (queue, offset) in model.placed.items():
            pin = pins.pop(ref, None)
            if offset >= model.min_offsets[queue]:
                assert pin == PinRow.placed(model.kinds[ref], TOPIC_ID, queue, offset)
        for queue, numbers in enumerate(model.queues):
            self._check_queue(queue, numbers)

    def _check_queue(self, queue: int, numbers: list[int | None]) -> None:
        first, machine = self.model.min_offsets[queue], self.log.machine
        state = machine.queues.get(TOPIC_ID, queue)
        assert (0 if state is None else state.next_offset) == len(numbers)
        last = (0, 0)
        found: dict[int, int] = {}
        stored = list(machine.rows.cq.from_base(TOPIC_ID, queue, 0))
        cached = machine.consume_queues.runs(TOPIC_ID, queue, first, len(numbers))
        assert [base for base, run in stored if base + run.count > first] == [b for b, _ in cached]
        for base, run in stored:
            # Searches by time and by index rely on this.
            assert last <= (run.offset_index, run.store_time_ms)
            last = (run.offset_index, run.store_time_ms)
            payload = b"".join(self.log.entries[run.raft_index - 1].payload)
            for number, tag_hash in enumerate(run.tag_hashes):
                at, length, _ = run.location(number)
                assert payload[at : at + length] == b"message %d" % tag_hash
                found[base + number] = tag_hash
        expected = {
            offset: number
            for offset, number in enumerate(numbers)
            if number is not None and offset >= first
        }
        assert {offset: n for offset, n in found.items() if offset >= first} == expected


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_rows_say_what_happened(rng: Random, steps: int) -> None:
    """After every step; and again when the entries are applied anew, in other portions."""
    history = History(rng)
    for _ in range(steps):
        history.step()
        history.check()
    again = MemoryStore()
    machine = machine_of(again)
    entries: list[Entry] = history.log.entries
    at = 0
    while at < len(entries):
        count = rng.randrange(1, 8)
        machine.apply(entries[at : at + count])
        at += count
    assert list(machine.rows.all()) == list(history.log.machine.rows.all())


async def test_trims_leave_what_is_retained_and_what_waits() -> None:
    """Pins of trimmed messages go, no other; the low index is that of the first one needed."""
    for seed in range(12):
        print(f"seed {seed}")
        history, sweep = History(Random(seed)), PinSweep()
        for _ in range(40):
            history.step()
            await history.trim(sweep)
            history.check()
            _check_low_index(history)
        for _ in range(2):
            history.model.now_ms += 60 * SECOND_MS
            await history.trim(sweep)
            history.check()
        pins = dict(history.log.machine.rows.pins.scan())
        assert pins.keys() == history.model.waiting.keys(), "a pin outlived its message"


def _check_low_index(history: History) -> None:
    machine = history.log.machine
    needed = [key.raft_index for key, _ in machine.rows.pending.scan()]
    for queue, first in enumerate(history.model.min_offsets):
        for base, run in machine.rows.cq.from_base(TOPIC_ID, queue, 0):
            if base + run.count > first:
                needed += [run.raft_index, run.offset_index]
    assert all(index >= machine.low_index for index in needed)


def test_a_row_that_waits_holds_what_its_cq_row_needs() -> None:
    """The entry is not read again when a message is placed."""
    log = Log()
    index = log.append((part_key(PartKind.HALF), [message(1, START_MS)]))
    row: PendingRow | None = log.machine.rows.pending.get(PendingKey(START_MS, index, 0))
    assert row is not None
    sent = message(1)
    assert (row.length, row.checksum, row.tag_hash, row.group_hash, row.message_id) == (
        len(sent.stored),
        sent.checksum,
        sent.tag_hash,
        sent.group_hash,
        sent.message_id,
    )
