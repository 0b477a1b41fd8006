"""Work that spans an await looks again whether the rows are still those it began with (rule 38)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from strata_mq.layout.rows import AppliedRow
from strata_seglog.log import SegmentInfo
from strata_storage.group.engine import GroupEngine
from strata_storage.tiering.publisher import Publisher
from strata_storage.upkeep.reclaim import Reclaimer
from strata_storage.upkeep.retention import low_indexes


class FakeEngine:
    """A replica whose rows a snapshot may replace at any moment."""

    raft_group = replica_id = 1

    def __init__(self) -> None:
        self.replica = SimpleNamespace(read_only="", installing=False)
        self.settled = 0
        self.during_scan: Callable[[], None] = lambda: None
        self.machine = SimpleNamespace(
            generation=0,
            low_index=50,
            state=AppliedRow(100, 1, 0),
            persisted_index=lambda: 90,
            applied_index=lambda: 100,
            settle=self.settle,
            rows=SimpleNamespace(
                queues=SimpleNamespace(after=lambda place, limit: ()),
                pins=SimpleNamespace(scan=self.pins),
            ),
        )

    def whole_rows(self) -> int | None:
        return None if self.replica.installing else cast(int, self.machine.generation)

    def settle(self) -> None:
        self.settled += 1

    def pins(self, last_index: int) -> Iterator[Any]:
        self.during_scan()
        return iter(())

    def installed(self) -> None:
        self.machine.generation += 1

    def as_list(self) -> Sequence[GroupEngine]:
        return cast(Sequence[GroupEngine], [self])


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def needed(engine: FakeEngine, replica_id: int = 1) -> list[bool]:
    """Return whether entries 10 and 95 of a sealed segment are needed."""
    log = SimpleNamespace()
    checkpointer = SimpleNamespace(indexes={1: 80})
    unused = cast(Any, None)
    reclaimer = Reclaimer(
        cast(Any, log),
        unused,
        cast(Any, checkpointer),
        run_write=unused,
        run_read=unused,
        instruments=unused,
    )
    segment = cast(SegmentInfo, SimpleNamespace(replicas={1: (1, 95)}))
    is_needed = await reclaimer._needed(engine.as_list(), segment)
    return [is_needed(replica_id, 10), is_needed(replica_id, 95)]


def test_nothing_is_freed_while_a_snapshot_is_taken_in(engine: FakeEngine) -> None:
    """The indexes that rows give are those of the rows that go."""
    assert low_indexes(engine.as_list(), {1: 80}) == {1: 50}
    engine.replica.installing = True
    assert low_indexes(engine.as_list(), {1: 80}) == {1: 0}


@pytest.mark.parametrize(
    ("low_index", "persisted_index", "checkpoint_index", "low"),
    [(50, 90, 80, 50), (120, 90, 99, 90), (120, 90, 80, 81), (120, 90, 0, 1)],
)
def test_an_entry_goes_when_rows_can_do_without_it(
    engine: FakeEngine, low_index: int, persisted_index: int, checkpoint_index: int, low: int
) -> None:
    """Its trim is applied, its rows survive a crash, and a checkpoint can stand in (rule 6)."""
    engine.machine.low_index = low_index
    engine.machine.persisted_index = lambda: persisted_index
    checkpoints = {1: checkpoint_index} if checkpoint_index else {}
    assert low_indexes(engine.as_list(), checkpoints) == {1: low}


async def test_entries_of_replicas_that_nobody_knows_stay(engine: FakeEngine) -> None:
    """A replica that is not hosted yet, or is read-only, has said of none that it may go."""
    assert await needed(engine, replica_id=2) == [True, True]
    engine.replica.read_only = "damaged"
    assert await needed(engine) == [True, True]


async def test_rows_that_are_replaced_do_not_say_what_the_log_may_give_up(
    engine: FakeEngine,
) -> None:
    """Not during the install, and not when one came while rows were looked through."""
    assert await needed(engine) == [False, True]
    engine.during_scan = engine.installed
    assert await needed(engine) == [True, True]
    engine.during_scan = lambda: None
    engine.replica.installing = True
    assert await needed(engine) == [True, True]


async def test_nothing_is_published_of_rows_that_are_being_replaced(engine: FakeEngine) -> None:
    """Nor is anything brought into them from memory: the leader ended while it waited its turn."""
    nothing = SimpleNamespace(run_read=None)
    unused = cast(Any, SimpleNamespace(place=nothing, topics=nothing, work=nothing, metadata=None))
    uploader = cast(Any, SimpleNamespace(turn=asyncio.Lock(), is_settled=False))
    publisher = Publisher(cast(GroupEngine, engine), uploader, unused, log=cast(Any, None))
    engine.replica.installing = True
    unused.place.home = "c"

    def touched() -> NoReturn:
        raise AssertionError("rows that are being replaced were touched")

    engine.machine.settle = touched
    await publisher._publish()
