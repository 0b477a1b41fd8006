"""A nameserver stops taking changes while those under way still find room (rule 11)."""

from __future__ import annotations

import pytest
import structlog

from strata_nameserver.process.disk_watch import DiskWatch
from strata_runtime.metrics import Metrics
from strata_testing.simulated_disk import SimulatedDisk

MIB = 1024 * 1024
REFUSE, BALLAST = 8 * MIB, 4 * MIB


class Raft:
    """Keeps the mark."""

    mark = -1

    def set_disk_mark(self, mark: int) -> None:
        self.mark = mark


class Watched:
    """A disk of 32 MiB, and somebody who fills it."""

    def __init__(self, ballast_bytes: int) -> None:
        self.disk = SimulatedDisk(capacity_bytes=32 * MIB)
        self.raft = Raft()
        self.watch = DiskWatch(
            self.disk, self.raft, REFUSE, ballast_bytes=ballast_bytes, metrics=Metrics.disabled()
        )

    async def with_free(self, free_bytes: int) -> int:
        """Let a stranger leave so much room; return the mark after a look."""
        if "stranger" in self.disk.names():
            self.disk.delete("stranger")
        taken = self.disk.space().free_bytes - free_bytes
        if taken > 0:
            self.disk.open("stranger", create=True).allocate(taken)
        await self.watch.check()
        return self.raft.mark


@pytest.fixture(params=[0, BALLAST])
async def watched(request: pytest.FixtureRequest) -> Watched:
    made = Watched(request.param)
    await made.watch.check()
    return made


async def test_changes_are_refused_before_the_disk_is_full(watched: Watched) -> None:
    """From the limit on and no longer than that; each change of it is one line."""
    assert watched.raft.mark == 0
    with structlog.testing.capture_logs() as lines:
        assert await watched.with_free(REFUSE) == 0
        assert await watched.with_free(REFUSE - 1) == 3
        assert await watched.with_free(REFUSE - 1) == 3
        assert watched.watch.is_full
        assert await watched.with_free(REFUSE + BALLAST) == 0
    assert [line["what"] for line in lines] == ["changes are refused", "changes are taken again"]


async def test_the_ballast_makes_room_for_what_is_under_way() -> None:
    """It goes when hardly anything is left, and is whole before changes are taken again."""
    watched = Watched(BALLAST)
    await watched.watch.check()
    assert "ballast" in watched.disk.names()
    assert await watched.with_free(MIB) == 3
    assert "ballast" not in watched.disk.names()
    assert watched.disk.space().free_bytes == MIB + BALLAST
    assert await watched.with_free(REFUSE + BALLAST - 1) == 3
    assert await watched.with_free(REFUSE + BALLAST) == 0
    assert "ballast" in watched.disk.names()


async def test_a_disk_that_cannot_be_looked_at_changes_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The known mark holds on, and the failure is told once."""

    def fails() -> None:
        raise OSError(5, "Input/output error")

    assert await watched.with_free(MIB) == 3
    monkeypatch.setattr(watched.disk, "space", fails)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            await watched.watch.check()
    assert watched.raft.mark == 3
    assert len([line for line in lines if "not known" in line["event"]]) == 1
