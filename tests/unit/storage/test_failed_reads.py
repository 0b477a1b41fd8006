"""A disk that fails to read is asked again: nothing is damaged by it, no message lost (rule 40)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.errors import CorruptFrame, LogError, ReadFailed
from strata_state.memory_store import MemoryStore
from strata_storage.base.errors import Refused
from strata_storage.base.hosted import HostedGroup
from strata_storage.rows.payloads import PayloadReader
from strata_storage.upkeep import row_preparer
from strata_storage.upkeep.rebuild import Rebuilt
from strata_storage.upkeep.row_preparer import RowPreparer

EIO = ReadFailed("0.log: Input/output error")
DAMAGED = CorruptFrame(0, "0.log", "payload checksum")


class FakeLog:
    """Knows no damage, and fails to read as often as it was told."""

    def __init__(self, *failures: LogError) -> None:
        self.failures = list(failures)

    def replica(self, replica_id: int) -> None:
        return None

    def recent(self, replica_id: int, index: int) -> bytes | None:
        return None

    def entry(self, replica_id: int, index: int) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return SimpleNamespace(payload=b"here")


def preparer_of(
    monkeypatch: pytest.MonkeyPatch, function: str, log: FakeLog
) -> tuple[RowPreparer, list[float]]:
    """Return a preparer whose reads of the log fail as the log was told, and its pauses."""
    waited: list[float] = []

    def read(*_: object) -> Rebuilt:
        if log.failures:
            raise log.failures.pop(0)
        return Rebuilt()

    monkeypatch.setattr(row_preparer, function, read)
    instruments = SimpleNamespace(corrupt=SimpleNamespace(add=lambda count: None))
    preparer = RowPreparer(MemoryStore(), log, instruments, pause=waited.append)  # type: ignore[arg-type]
    return preparer, waited


@pytest.mark.parametrize(
    ("failures", "damage", "pauses"),
    [([EIO] * 3, "", 3), ([DAMAGED], "payload checksum", 0)],
)
def test_rows_are_rebuilt_when_the_disk_reads_again(
    monkeypatch: pytest.MonkeyPatch, failures: list[LogError], damage: str, pauses: int
) -> None:
    """A start waits for a disk that hiccups; damage is named at once."""
    preparer, waited = preparer_of(monkeypatch, "rebuild_if_needed", FakeLog(*failures))
    prepared = preparer.prepare(HostedGroup(1, 11))
    assert damage in prepared.damage
    assert bool(prepared.damage) is bool(damage)
    assert len(waited) == pauses


def test_a_disk_that_does_not_read_for_long_damages_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller serves the others meanwhile and tries again: then the rows are there."""
    preparer, waited = preparer_of(monkeypatch, "rebuild_if_needed", FakeLog(*[EIO] * 4))
    with pytest.raises(ReadFailed, match="Input/output error"):
        preparer.prepare(HostedGroup(1, 11))
    assert len(waited) == 3
    assert preparer.prepare(HostedGroup(1, 11)).damage == ""


def test_entries_that_are_not_read_again_now_damage_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Likewise the entries that plugins keep in memory."""
    preparer, _ = preparer_of(monkeypatch, "redo", FakeLog(*[EIO] * 4))
    plugins = SimpleNamespace(settled_index=lambda applied_index: 3)
    machine = SimpleNamespace(applied_index=lambda: 5, plugins=plugins)
    engine: Any = SimpleNamespace(raft_group=1, replica_id=11, machine=machine)
    with pytest.raises(ReadFailed, match="Input/output error"):
        preparer.redo(engine)
    assert preparer.redo(engine) == ""


@pytest.mark.parametrize(
    ("failure", "outcome"), [(EIO, pb.OUTCOME_OVERLOADED), (DAMAGED, pb.OUTCOME_CORRUPT)]
)
async def test_a_payload_that_is_not_read_now_is_not_damaged(
    failure: LogError, outcome: pb.Outcome.ValueType
) -> None:
    """A caller that wants it is told to come again; the next read has it."""

    async def run(work: Callable[[], Any]) -> Any:
        return work()

    reader = PayloadReader(FakeLog(failure), 11, run)
    with pytest.raises(Refused) as refused:
        await reader.read(5)
    assert refused.value.outcome == outcome
    assert await reader.read(5) == b"here"
