"""Pins that a trim removes, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strata_mq.commands.rare import DropKind, TrimCommand
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import ORDINAL_OF_ALL, PendingKey, PendingRef, PinRow, PinRun
from strata_mq.layout.rows import QueueRow
from strata_storage.leading import pin_sweep
from strata_storage.leading.pin_sweep import PinSweep
from tests.unit.storage.pending_entries import TOPIC_ID, Log

QUEUE = (TOPIC_ID, 0)
_FIRST = PendingRef(0, 0)
WAITING = PinRow.pending(PartKind.DELAYED, TOPIC_ID, 5)


def placed(offset: int) -> PinRow:
    return PinRow.placed(PartKind.HALF, TOPIC_ID, 0, offset)


def log_with(pins: dict[int, PinRow], *, min_offset: int = 0) -> Log:
    """Return a log with one pin per index."""
    log = Log()
    batch = log.store.new_batch()
    log.machine.rows.queues.put(batch, TOPIC_ID, 0, QueueRow(1_000, min_offset, 0, 0))
    for index, pin in pins.items():
        log.machine.rows.pins.put(batch, PendingRef(index, 0), pin)
    log.store.write(batch)
    return log


def left(log: Log) -> list[int]:
    return [ref.raft_index for ref, _ in log.machine.rows.pins.scan()]


async def sweep_and_trim(log: Log, sweep: PinSweep, min_offset: int, now_ms: int = 0) -> int | None:
    """Sweep as if the queue were trimmed to an offset; remove what may go."""
    found = await sweep.sweep(log.machine, {QUEUE: min_offset}, now_ms)
    low_index = found.low_index or 0
    log.trim(TrimCommand(low_index, 0, [], found.runs, found.pending))
    return found.low_index


async def test_pins_of_trimmed_messages_go_and_the_first_that_stays_bounds_the_log() -> None:
    """Placed below the queue's next beginning: gone; a retracted one, too."""
    pins = {index: placed(index) for index in range(10, 40)}
    pins[20] = WAITING
    pins[25] = PinRow.retracted(TOPIC_ID, 0, 25)
    log = log_with(pins)
    assert await sweep_and_trim(log, PinSweep(), 30) == 20
    assert left(log) == [20, *range(30, 40)]


async def test_no_pin_bounds_nothing() -> None:
    """Neither when there was none, nor when the last ones may go."""
    log = log_with({})
    assert await sweep_and_trim(log, PinSweep(), 30) is None
    log = log_with({index: placed(index) for index in range(10)})
    assert await sweep_and_trim(log, PinSweep(), 30) is None
    assert left(log) == []


async def test_long_runs_are_ranges_and_short_ones_single_pins() -> None:
    """A range deletion is for many pins; none covers a pin that stays."""
    pins = {index: placed(index) for index in range(1, 30)}
    pins |= {4: WAITING, 8: WAITING}
    log = log_with(pins)
    found = await PinSweep().sweep(log.machine, {QUEUE: 25}, 0)
    single = [PinRun(PendingRef(n, 0), PendingRef(n, 1)) for n in (1, 2, 3, 5, 6, 7)]
    assert sorted(found.runs) == [*single, PinRun(PendingRef(9, 0), PendingRef(24, 1))]


async def test_what_waits_of_a_dropped_topic_goes_with_its_pin() -> None:
    """Its rows are named; what was placed in its queues has no queue any more."""
    log = log_with({3: WAITING, 4: placed(4), 5: PinRow.pending(PartKind.HALF, 99, 7)})
    log.machine.dropped.add(log.store.new_batch(), DropKind.TOPIC, 99, 0)
    found = await PinSweep().sweep(log.machine, {}, 0)
    assert (found.low_index, found.pending) == (3, [PendingKey(7, 5, 0)])
    assert found.runs == [PinRun(PendingRef(5, 0), PendingRef(5, 1))]


async def test_pins_of_lost_messages_go() -> None:
    """They were looked for by entries that are applied by now."""
    log = log_with({3: PinRow.lost(), 4: WAITING})
    batch = log.store.new_batch()
    log.machine.rows.pins.put(batch, PendingRef(2, ORDINAL_OF_ALL), PinRow.lost())
    log.store.write(batch)
    assert await sweep_and_trim(log, PinSweep(), 0) == 4
    assert left(log) == [4]


@pytest.mark.parametrize("pins_per_scan", [3, 10, 64])
async def test_a_sweep_is_bounded_and_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, pins_per_scan: int
) -> None:
    """One message that waits at the front does not keep the pins behind it."""
    monkeypatch.setattr(pin_sweep, "_PINS_PER_SCAN", pins_per_scan)
    pins = {1: WAITING} | {index: placed(index) for index in range(2, 100)}
    log, sweep = log_with(pins), PinSweep()
    before = len(left(log))
    for _ in range(100):
        assert await sweep_and_trim(log, sweep, 60) == 1
        after = len(left(log))
        assert before - after <= 2 * pins_per_scan
        before = after
    assert left(log) == [1, *range(60, 100)]


async def test_an_unfinished_front_bounds_the_log_by_what_was_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The low index never passes a pin that may stay."""
    monkeypatch.setattr(pin_sweep, "_PINS_PER_SCAN", 10)
    log = log_with({index: placed(index) for index in range(1, 50)})
    sweep, low_indexes = PinSweep(), []
    for _ in range(6):
        low_indexes.append(await sweep_and_trim(log, sweep, 40))
        assert low_indexes[-1] is not None
        assert low_indexes[-1] <= min(left(log))
    assert low_indexes[0] == 11
    assert low_indexes[-1] == 40


def looked_at(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the raft index of each pin that is looked at from now on."""
    indexes: list[int] = []
    pins, scan = log.machine.rows.pins, log.machine.rows.pins.scan

    def seen(begin: PendingRef = _FIRST) -> Iterator[tuple[PendingRef, PinRow]]:
        for ref, pin in scan(begin):
            indexes.append(ref.raft_index)
            yield ref, pin

    monkeypatch.setattr(type(pins), "scan", lambda _, begin=_FIRST: seen(begin))
    return indexes


async def test_pins_of_messages_that_stay_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later passes go as far as trims went, and further when an operator trims or drops."""
    pins = {1: WAITING} | {index: placed(index) for index in range(2, 1_000)}
    log, sweep = log_with(pins), PinSweep()
    indexes = looked_at(log, monkeypatch)

    async def turn(min_offset: int, reach: int) -> int:
        """Trim; return the last pin that was looked at."""
        indexes.clear()
        found = await sweep.sweep(log.machine, {QUEUE: min_offset}, 0, reach)
        log.trim(TrimCommand(1, 0, [], found.runs, found.pending))
        return max(indexes)

    assert await turn(0, 0) == 999
    assert await turn(0, 0) == 1
    assert await turn(60, 60) <= 61
    assert left(log) == [1, *range(60, 1_000)]
    assert await turn(60, 0) <= 61
    sweep.look_everywhere()
    assert await turn(900, 0) == 999
    assert left(log) == [1, *range(900, 1_000)]
    log.machine.dropped.add(log.store.new_batch(), DropKind.TOPIC, 99, 0)
    assert await turn(900, 0) == 999


async def test_a_trim_during_a_pass_is_taken_in_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass has gone by already; the next one reaches as far as the trim."""
    monkeypatch.setattr(pin_sweep, "_PINS_PER_SCAN", 10)
    pins = {1: WAITING} | {index: placed(index) for index in range(2, 100)}
    log, sweep = log_with(pins), PinSweep()
    for min_offset in (0, 0, 0, 0, 20):
        reach = min_offset
        found = await sweep.sweep(log.machine, {QUEUE: min_offset}, 0, reach)
        log.trim(TrimCommand(1, 0, [], found.runs, found.pending))
    assert left(log) == [1, *range(2, 100)]
    for _ in range(12):
        found = await sweep.sweep(log.machine, {QUEUE: 20}, 0, 0)
        log.trim(TrimCommand(1, 0, [], found.runs, found.pending))
    assert left(log) == [1, *range(20, 100)]


async def test_pins_that_are_kept_for_a_time_are_looked_at_again() -> None:
    """Behind a message that waits, too, and though nothing else is trimmed then."""
    pins = {1: WAITING} | {index: placed(index) for index in range(2, 50)}
    log, sweep = log_with(pins), PinSweep(committed_ms=1_000)
    for now_ms, reach in ((0, 30), (500, 0), (1_000, 0), (2_000, 0)):
        found = await sweep.sweep(log.machine, {QUEUE: 30}, now_ms, reach)
        log.trim(TrimCommand(1, 0, [], found.runs, found.pending))
    assert left(log) == [1, *range(30, 50)]


async def test_one_trim_removes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes with later ones."""
    monkeypatch.setattr(pin_sweep, "_REMOVED_MAX", 10)
    pins = {index: placed(index) if index % 2 else WAITING for index in range(2, 200)}
    log, sweep = log_with(pins), PinSweep()
    for _ in range(60):
        found = await sweep.sweep(log.machine, {QUEUE: 500}, 0)
        assert len(found.runs) <= 11
        log.trim(TrimCommand(2, 0, [], found.runs, found.pending))
    assert left(log) == list(range(2, 200, 2))


async def test_pins_of_committed_messages_stay_for_a_time_and_keep_no_entry() -> None:
    """A commit is repeated after minutes; of delayed messages nobody asks. No later one is lost."""
    pins = {index: placed(index) for index in range(10, 40)}
    pins[15] = PinRow.placed(PartKind.DELAYED, TOPIC_ID, 0, 15)
    pins[35] = WAITING
    log, sweep = log_with(pins), PinSweep(committed_ms=1_000)

    async def trim(min_offset: int, now_ms: int) -> int | None:
        low_index = await sweep_and_trim(log, sweep, min_offset, now_ms)
        batch = log.store.new_batch()
        log.machine.rows.queues.put(batch, TOPIC_ID, 0, QueueRow(1_000, min_offset, 0, 0))
        log.store.write(batch)
        return low_index

    assert await trim(30, 0) == 30
    assert left(log) == [*range(10, 15), *range(16, 40)]
    assert await trim(34, 999) == 34
    assert left(log) == [*range(10, 15), *range(16, 40)]
    assert await trim(34, 1_000) == 34
    assert left(log) == list(range(30, 40))
    assert await trim(34, 2_000) == 34
    assert left(log) == list(range(34, 40))
    assert await trim(40, 9_000) == 35
    assert await trim(40, 10_000) == 35
    assert left(log) == [35]


async def test_pins_of_committed_messages_that_a_new_leader_finds_have_their_time() -> None:
    """It cannot know since when they are trimmed; a queue that is gone keeps none."""
    log = log_with({index: placed(index) for index in range(10, 20)}, min_offset=15)
    sweep = PinSweep(committed_ms=1_000)
    assert await sweep_and_trim(log, sweep, 15, 5_000) == 15
    assert left(log) == list(range(10, 20))
    assert await sweep_and_trim(log, sweep, 15, 6_000) == 15
    assert left(log) == list(range(15, 20))
    gone = Log()
    batch = gone.store.new_batch()
    gone.machine.rows.pins.put(batch, PendingRef(7, 0), placed(3))
    gone.store.write(batch)
    found = await PinSweep(committed_ms=1_000).sweep(gone.machine, {}, 0)
    assert (found.low_index, len(found.runs)) == (None, 1)


async def test_nothing_is_remembered_of_queues_that_are_gone() -> None:
    """A leader of many months sees many topics come and go; those of today are known."""
    log, sweep = log_with({5: placed(5), 6: placed(6)}), PinSweep(committed_ms=1_000)
    other = PinRow.placed(PartKind.HALF, TOPIC_ID + 1, 0, 5)
    batch = log.store.new_batch()
    log.machine.queues.put(batch, TOPIC_ID + 1, 0, QueueRow(1_000, 0, 0, 0))
    log.machine.rows.pins.put(batch, PendingRef(7, 0), other)
    log.store.write(batch)
    min_offsets = {QUEUE: 6, (TOPIC_ID + 1, 0): 6}
    await sweep.sweep(log.machine, min_offsets, 0)
    assert sorted(sweep._begins) == sorted(min_offsets)
    batch = log.store.new_batch()
    log.machine.queues.drop(batch, TOPIC_ID + 1, 0)
    log.store.write(batch)
    await sweep.sweep(log.machine, {QUEUE: 6}, 1)
    assert list(sweep._begins) == [QUEUE]
