"""The truncation that an install leaves in the log goes with its segment (rules 8 to 10)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from strata_multiraft.replica import void_frame
from strata_seglog.frames import Frame, FrameKind, hard_state_frame
from strata_seglog.index import VOID_INDEX
from strata_seglog.log import CommitLog, LogOptions
from strata_storage.base.config import RetentionOptions
from strata_storage.upkeep import reclaim
from strata_testing.simulated_disk import SimulatedDisk

INSTALLED, OTHER = 1, 2
FLOOR_TERM, FLOOR_INDEX = 5, 100
Result = TypeVar("Result")


def opened(disk: SimulatedDisk) -> CommitLog:
    options = LogOptions(segment_bytes=64 * 1024, recent_bytes=0)
    return CommitLog.open(disk, options, report=lambda corruption: pytest.fail(str(corruption)))


def entry(replica_id: int, index: int) -> Frame:
    return Frame(FrameKind.ENTRY, replica_id, replica_id, 5, index, payload=(bytes(900),))


def engine_of(replica_id: int, applied: int) -> Any:
    """An engine whose rows cover all that is applied."""
    machine = SimpleNamespace(
        replica_id=replica_id,
        low_index=applied,
        persisted_index=lambda: applied,
        applied_index=lambda: applied,
    )
    return SimpleNamespace(
        replica_id=replica_id,
        raft_group=replica_id,
        whole_rows=lambda: 1,
        replica=SimpleNamespace(read_only=""),
        machine=machine,
    )


async def at_once(work: Callable[[], Result]) -> Result:
    return work()


class Kept:
    """Checkpoints cover everything, and the other replica's first message is kept for long."""

    def __init__(self, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.engines = [
            engine_of(each.replica_id, each.last_index) for each in log.replicas().values()
        ]
        checkpointer: Any = SimpleNamespace(
            write_behind=self._nothing,
            indexes={each.replica_id: each.last_index - 1 for each in log.replicas().values()},
        )
        self.engines[OTHER - 1].machine.low_index = 1
        counter = SimpleNamespace(add=lambda count: None)
        instruments: Any = SimpleNamespace(freed_segments=counter, relocated_bytes=counter)
        monkeypatch.setattr(reclaim, "_retained_indexes", self._retained)
        self.reclaimer = reclaim.Reclaimer(
            log,
            RetentionOptions(),
            checkpointer,
            run_write=at_once,
            run_read=at_once,
            instruments=instruments,
        )

    async def reclaim(self) -> None:
        """Run as many turns as there are segments."""
        for _ in self.log.segments():
            await self.reclaimer.reclaim(self.engines, {}, disk_is_low=True)

    async def _nothing(self, *_: object, **__: object) -> None:
        pass

    async def _retained(self, machine: Any, _: int) -> set[int]:
        return {1} if machine.replica_id == OTHER else set()


def installed(until: int) -> tuple[SimulatedDisk, CommitLog]:
    """A log whose first segment has the truncation and a message of the other replica."""
    disk = SimulatedDisk(1)
    log = opened(disk)
    log.write_and_sync([hard_state_frame(each, each, 5, 7, 0) for each in (INSTALLED, OTHER)])
    log.write_and_sync(
        [void_frame(INSTALLED, INSTALLED, (FLOOR_TERM, FLOOR_INDEX)), entry(OTHER, 1)]
    )
    for index in range(until - 600, until + 1):
        log.write_and_sync([entry(INSTALLED, index)])
    log.write_and_sync([entry(OTHER, 2), entry(OTHER, 3)])
    return disk, log


async def test_an_old_truncation_does_not_pin_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is as long again: the message is moved, the segments go, nothing old returns."""
    disk, log = installed(until=1_000)
    assert len(log.segments()) > 8
    kept = Kept(log, monkeypatch)
    await kept.reclaim()
    assert len(log.segments()) <= 2
    for _ in range(2):
        stored = log.entry(OTHER, 1)
        assert stored is not None
        assert stored.payload == bytes(900)
        assert log.entry(INSTALLED, VOID_INDEX) is None
        replica = log.replicas()[INSTALLED]
        assert (replica.last_index, replica.void_until) == (1_000, 0)
        log.close()
        log = opened(disk)


async def test_a_truncation_stays_until_the_log_is_as_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It tells up to where others count on the replica; no message is given up for it."""
    _, log = installed(until=1_000)
    log.write_and_sync([void_frame(INSTALLED, INSTALLED, (6, 5_000)), entry(INSTALLED, 4_000)])
    for index in range(4, 400):
        log.write_and_sync([entry(OTHER, index)])
    kept = Kept(log, monkeypatch)
    await kept.reclaim()
    assert log.entry(INSTALLED, VOID_INDEX) is not None
    assert log.replicas()[INSTALLED].void_until == 5_000
    assert not kept.reclaimer.at_limit


async def test_a_truncation_of_a_replica_that_is_not_hosted_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows what it needs."""
    _, log = installed(until=1_000)
    kept = Kept(log, monkeypatch)
    del kept.engines[INSTALLED - 1]
    await kept.reclaim()
    assert log.entry(INSTALLED, VOID_INDEX) is not None
