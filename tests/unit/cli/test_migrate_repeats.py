"""Migration: calls that are repeated, stops while a server is away, and the cost of a batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata_cli.migrate.copier import Copier, CopyOptions
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.source_rows import SourceGroup, SourceQueue
from strata_cli.migrate.state import MAX_RUN_MESSAGES, MigrationState, StoredCopy
from strata_cli.migrate.target import TargetBusyError
from tests.unit.cli.migrate_ports import Faults, MemorySource, MemoryTarget, run, unlimited

QUEUE = SourceQueue("t", "a", 0)


def small(faults: Faults) -> tuple[MemorySource, MemoryTarget]:
    """A topic of one queue with a consumer group."""
    source, target = MemorySource(faults), MemoryTarget(faults)
    source.add_topic("a", "t", 1, "NORMAL")
    source.add(QUEUE, 4)
    source.groups["g"] = SourceGroup("g", False, 16)
    source.positions["g", QUEUE] = 2
    return source, target


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
async def test_any_call_is_repeated(tmp_path: Path, after: bool) -> None:
    """A run ends well although one call failed, whichever it was, carried out or not."""
    faults = Faults()
    await run(*small(faults), tmp_path / "whole.db")
    assert faults.calls > 10
    for number in range(1, faults.calls + 1):
        source, target = small(Faults(busy_at=frozenset((number,)), after=after))
        cursors = await run(source, target, tmp_path / f"{number}.db")
        assert [one.offset for one in cursors.moved] == [2], number
        assert target.bodies("t") == [[one.body for one in source.messages[QUEUE]]], number
        assert target.set == {("g", "t", 0): 2}


async def test_a_stop_ends_repeats(tmp_path: Path) -> None:
    """A run that waits for a server ends with the stop, in order, and not minutes later."""
    source, target = small(Faults())
    state, slept = MigrationState(tmp_path / "s.db"), 0

    async def busy(*_: object) -> None:
        raise TargetBusyError("busy")

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 2:
            copier.stop()
        await asyncio.sleep(0)

    target.scan = busy  # type: ignore[assignment, method-assign]
    options = CopyOptions(workers=1)
    copier = Copier(source, target, state, pace=unlimited(), options=options, sleep=sleep)
    cursors = await Migration(source, target, Choices()).run(state, copier)
    state.close()
    assert (cursors.moved, target.set, slept) == ((), {}, 2)


def steps_of_a_look(path: Path, runs: int) -> int:
    """Return how many steps the database makes to find what is stored from an offset on."""
    state = MigrationState(path)
    state.add_topic("t", "NORMAL", {QUEUE: 0})
    # Every second message of the target is another producer's: each run has one message.
    state.absorb("t", 0, [StoredCopy(2 * at, "a", 0, at) for at in range(runs)], 2 * runs)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    state._rows.set_progress_handler(step, 1)
    assert state.stored_from(QUEUE, runs - 3) == {runs - 3, runs - 2, runs - 1}
    state._rows.set_progress_handler(None, 1)
    state.close()
    return steps


def test_a_look_at_what_is_stored_costs_the_same_however_much_was_copied(tmp_path: Path) -> None:
    """A copy that scans all runs for each batch takes quadratic time."""
    once = steps_of_a_look(tmp_path / "once.db", MAX_RUN_MESSAGES)
    assert steps_of_a_look(tmp_path / "more.db", 4 * MAX_RUN_MESSAGES) < 1.5 * once


def test_long_runs_are_found_from_any_offset(tmp_path: Path) -> None:
    """Their messages are known one by one, and a run goes on where the last one is full."""
    state = MigrationState(tmp_path / "s.db")
    count = 2 * MAX_RUN_MESSAGES + 10
    for first in range(0, count, 1_000):
        some = range(first, min(first + 1_000, count))
        state.absorb("t", 0, [StoredCopy(at, "a", 0, 7 + at) for at in some], some[-1] + 1)
    for offset in (0, 8, MAX_RUN_MESSAGES, count, count + 6, count + 7):
        assert state.stored_from(QUEUE, offset) == set(range(max(7, offset), 7 + count))
    lengths = [row[3] for row in state.runs("t", 0)]
    assert lengths == [MAX_RUN_MESSAGES, MAX_RUN_MESSAGES, 10]
    state.close()
