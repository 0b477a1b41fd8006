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


@pytest.mark.parametrize(
    ("failures", "damage", "pauses"),
    [
        ([EIO] * 3, "", 3),
        ([DAMAGED], "payload checksum", 0),
        ([EIO] * 99, "Input/output error", 9),
    ],
)
def test_rows_are_rebuilt_when_the_disk_reads_again(
    monkeypatch: pytest.MonkeyPatch, failures: list[LogError], damage: str, pauses: int
) -> None:
    """A start waits for a disk that hiccups; one that never reads does not stop the others."""
    log = FakeLog(*failures)
    waited: list[float] = []

    def rebuild(*_: object) -> Rebuilt:
        if log.failures:
            raise log.failures.pop(0)
        return Rebuilt()

    monkeypatch.setattr(row_preparer, "rebuild_if_needed", rebuild)
    instruments = SimpleNamespace(corrupt=SimpleNamespace(add=lambda count: None))
    preparer = RowPreparer(MemoryStore(), log, instruments, pause=waited.append)  # type: ignore[arg-type]
    prepared = preparer.prepare(HostedGroup(1, 11))
    assert damage in prepared.damage
    assert bool(prepared.damage) is bool(damage)
    assert len(waited) == pauses


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
