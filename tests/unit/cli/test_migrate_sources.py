"""Sources that delete, skip, fall silent or lose messages while they are copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.errors import CliError
from strata_cli.migrate.copier import MAX_BATCH_MESSAGES
from strata_cli.migrate.source import PulledBatch
from strata_cli.migrate.source_rows import SourceQueue
from strata_cli.migrate.state import BatchProgress, MigrationState
from tests.unit.cli.migrate_ports import MemorySource, MemoryTarget, run

_INNER_BATCH = 0x80


async def test_messages_that_the_source_deleted_are_counted(tmp_path: Path) -> None:
    """The copy goes on with the messages that are left; the others count as expired."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 2)
    await run(source, target, path)
    source.add(queue, 6)
    del source.messages[queue][:5]
    await run(source, target, path)
    assert target.bodies("t")[0][2:] == [b"t/a/0/5", b"t/a/0/6", b"t/a/0/7"]
    state = MigrationState(path)
    assert [(each.copied, each.expired) for each in state.queues()] == [(5, 3)]
    state.close()


async def test_a_source_that_gives_nothing_is_asked_again(tmp_path: Path) -> None:
    """Nothing is passed over: the run waits, or ends with the place, and a repeat goes on."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 5)
    source.silent = 4
    await run(source, target, path)
    assert len(target.bodies("t")[0]) == 5
    source.add(queue, 5)
    source.silent = 1_000
    with pytest.raises(CliError, match="up to offset 10, and its broker gives none at 5"):
        await run(source, target, path)
    source.silent = 0
    await run(source, target, path)
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(10)]


async def test_a_source_that_skips_is_not_followed(tmp_path: Path) -> None:
    """RocketMQ answers a failed look-up with an offset in its next file, far behind the end."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 5)
    pull, skips = source.pull, [3]

    async def skipping(queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        if offset in skips:
            skips.remove(offset)
            return PulledBatch([], 300_000, await source.window(queue))
        return await pull(queue, offset, count)

    source.pull = skipping  # type: ignore[method-assign]
    await run(source, target, path)
    source.add(queue, 2)
    await run(source, target, path)
    assert skips == []
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(7)]


async def test_messages_that_are_missing_within_a_pull_are_counted(tmp_path: Path) -> None:
    """Nobody may take the copy for whole."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 6)
    del source.messages[queue][2:4]
    await run(source, target, path)
    state = MigrationState(path)
    assert [(each.copied, each.expired) for each in state.queues()] == [(4, 2)]
    state.close()


async def test_many_refusals_are_noted_batch_by_batch(tmp_path: Path) -> None:
    """A queue full of messages that cannot be copied is not held in memory."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 3 * MAX_BATCH_MESSAGES)
    held = source.messages[queue]
    held[:] = [replace(one, system_flag=_INNER_BATCH) for one in held]
    source.most_pulled = 100
    noted: list[int] = []
    advance = MigrationState.advance

    def noting(state: MigrationState, queue: SourceQueue, done: BatchProgress) -> None:
        noted.append(len(done.refusals))
        advance(state, queue, done)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MigrationState, "advance", noting)
        await run(source, target, path, skips_refused=True)
    assert noted == [MAX_BATCH_MESSAGES] * 3


async def test_a_queue_that_became_shorter_ends_the_round(tmp_path: Path) -> None:
    """A broker may lose what it had not flushed, between the begin of a round and a pull."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 9)
    pull = source.pull

    async def losing(queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        del source.messages[queue][4:]
        return await pull(queue, offset, count)

    source.pull = losing  # type: ignore[method-assign]
    await run(source, target, path)
    source.pull = pull  # type: ignore[method-assign]
    source.add(queue, 2)
    await run(source, target, path)
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(6)]
