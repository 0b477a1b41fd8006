"""Damage that any read found takes a replica out; what cannot be copied lets messages go early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata_seglog.errors import CorruptFrame, ReadFailed, WriteTooLarge
from strata_storage.upkeep.damage import DamageWatch
from strata_storage.upkeep.reclaim import Reclaimer


class Log:
    """A log in which replica 11 lost an entry, as a read of a payload found."""

    is_damaged = False

    def replicas(self) -> dict[int, Any]:
        reason = "a frame is damaged" if self.is_damaged else ""
        return {11: SimpleNamespace(damaged=reason), 12: SimpleNamespace(damaged="")}


class Hosted:
    def __init__(self, replica_id: int) -> None:
        self.raft_group, self.replica_id = 1, replica_id
        self.read_only, self.installing = "", False

    def is_sole(self) -> bool:
        return False

    def fail(self, reason: str) -> None:
        self.read_only = reason


async def test_damage_that_a_read_found_is_seen_without_a_scrub() -> None:
    """Dead letters, forwards and uploads read entries, too; the scrub may be off."""
    log, lost, whole = Log(), Hosted(11), Hosted(12)
    replicas = cast(Any, {1: lost, 2: whole})
    watch = DamageWatch(cast(Any, log), replicas, cast(Any, None))
    await watch.scan(0)
    assert not lost.read_only
    log.is_damaged = True
    await watch.scan(0)
    assert "a frame is damaged" in lost.read_only
    assert not whole.read_only


@pytest.mark.parametrize(
    ("failure", "at_limit"),
    [
        (CorruptFrame(7, "a", "checksum"), True),
        (WriteTooLarge("above one segment"), True),
        (ReadFailed("EIO"), False),
    ],
)
async def test_a_segment_that_cannot_be_emptied_does_not_end_the_limit_of_the_log(
    failure: Exception, *, at_limit: bool
) -> None:
    """Nor the node: segments may have been longer once, and then trims alone make room."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    async def fails(_: object) -> Any:
        raise failure

    reclaimer = Reclaimer(
        cast(Any, SimpleNamespace(end_position=0, first_position=0)),
        cast(Any, SimpleNamespace(max_log_bytes=0)),
        cast(Any, SimpleNamespace(write_behind=nothing, indexes={})),
        run_write=cast(Any, fails),
        run_read=cast(Any, fails),
        instruments=cast(Any, None),
    )
    await reclaimer.reclaim([], {}, disk_is_low=False)
    assert reclaimer.at_limit is at_limit
