"""Changes that the tier's commands make to its rows; a stale command makes none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_mq.commands.common import CommandKind
from strata_mq.commands.rare import DropKind
from strata_mq.commands.tier import (
    LocalQueue,
    TierChangeCommand,
    encode_tier_change,
    encode_tier_dispatch,
    encode_tier_local,
)
from strata_mq.layout.tier_rows import OffsetRange
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row
from strata_state.rows import GroupRows
from strata_storage.base.errors import ApplyError
from strata_storage.rows.tier_state import TierState
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.state import (
    CommitRanges,
    DropRanges,
    ForgetObjects,
    ObjectRef,
    ReplaceRanges,
    TierChange,
    TieredRange,
    encode_change,
)
from strata_tier.ranges.metadata_rows import RowTierMetadata

RAFT_GROUP = 3
DISPATCH = encode_tier_dispatch([OffsetRange(7, 0, 0, 10)])


class State:
    """The tier state of one raft group, and its store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.rows = GroupRows(self.store, RAFT_GROUP)
        self.dropped: set[tuple[int, int]] = set()
        metadata = RowTierMetadata(self.store, RAFT_GROUP)
        self.tier = TierState(metadata, self.rows.tier, 0, dropped=self.dropped)
        self.index = 0

    def apply(self, kind: CommandKind, payload: bytes) -> bool:
        """Apply an entry; return whether it was not stale."""
        self.index += 1
        batch = self.store.new_batch()
        self.tier.apply(batch, kind, self.index, payload)
        self.store.write(batch)
        return self.tier.stale is None or self.tier.stale.raft_index != self.index

    def change(self, change: TierChange, *, ends_dispatch: bool = False) -> bool:
        command = encode_tier_change(TierChangeCommand(ends_dispatch, encode_change(change)))
        return self.apply(CommandKind.TIER_CHANGE, command)

    def all_rows(self) -> list[Row]:
        return list(self.store.scan(b"", b"\xff" * 8))


def ref(object_id: int, length: int = 1_000) -> ObjectRef:
    return ObjectRef(object_id, ObjectKind.STREAM_SET, f"key-{object_id}", "", length, 5, 3)


def tiered(first: int, end: int, object_id: int, queue: int = 0) -> TieredRange:
    return TieredRange(7, queue, first, end, 0, 1, end - first, 100, 1, 2, object_id)


def commit(first: int, end: int, object_id: int) -> CommitRanges:
    return CommitRanges(ref(object_id), [tiered(first, end, object_id)], 50)


@pytest.fixture
def state() -> State:
    """Offsets 0 to 9 of a queue are in object 1, those to 19 are being uploaded."""
    made = State()
    assert made.change(commit(0, 10, 1))
    assert made.apply(CommandKind.TIER_DISPATCH, encode_tier_dispatch([OffsetRange(7, 0, 10, 20)]))
    return made


STALE: dict[str, Callable[[State], bool]] = {
    "a dispatch beside another": lambda state: state.apply(CommandKind.TIER_DISPATCH, DISPATCH),
    "a commit that doubles a range": lambda state: state.change(
        commit(5, 12, 2), ends_dispatch=True
    ),
    "a commit of which only the second range doubles one": lambda state: state.change(
        CommitRanges(ref(2), [tiered(0, 4, 2, queue=1), tiered(9, 12, 2)], 50)
    ),
    "an object with other bytes": lambda state: state.change(
        CommitRanges(ref(1, length=999), [tiered(10, 20, 1)], 50)
    ),
    "a replacement of what is not whole": lambda state: state.change(
        ReplaceRanges(ref(2), [tiered(5, 10, 2)], 50)
    ),
    "an object that is live is forgotten": lambda state: state.change(ForgetObjects([1], 50)),
    "a local offset behind the commit offset": lambda state: state.apply(
        CommandKind.TIER_LOCAL, encode_tier_local([LocalQueue(7, 0, 5), LocalQueue(7, 0, 11)])
    ),
    "a local offset of a queue that is not tiered": lambda state: state.apply(
        CommandKind.TIER_LOCAL, encode_tier_local([LocalQueue(7, 4, 1)])
    ),
}


@pytest.mark.parametrize("name", STALE)
def test_a_stale_entry_changes_no_row(state: State, name: str) -> None:
    """It is told by its index, nothing of it is written, and what fits is applied after it."""
    before = state.all_rows()
    assert not STALE[name](state)
    assert state.tier.stale is not None
    assert state.tier.stale.reason
    assert state.all_rows() == before
    assert state.tier.dispatch == [OffsetRange(7, 0, 10, 20)]
    assert state.tier.local_offset(7, 0) == 0
    assert state.change(commit(10, 20, 2), ends_dispatch=True)
    assert state.tier.commit_offset(7, 0) == 20
    assert not state.tier.dispatch


def test_what_fits_is_never_stale(state: State) -> None:
    """Commit, local offset, drop and forget, each decided on what was applied before it."""
    assert state.change(commit(10, 20, 2), ends_dispatch=True)
    assert state.apply(CommandKind.TIER_LOCAL, encode_tier_local([LocalQueue(7, 0, 20)]))
    assert state.tier.local_offset(7, 0) == 20
    assert state.change(DropRanges([(7, 0, 10)], 60))
    assert state.change(ForgetObjects([1], 70))
    assert [held.ref.object_id for held in state.tier.metadata.objects()] == [2]
    assert state.tier.stale is None


def test_bytes_that_are_no_change_stop_the_replica(state: State) -> None:
    """A committed entry that nobody can read is damage, not a stale decision."""
    command = encode_tier_change(TierChangeCommand(False, b"\xff" * 32))
    with pytest.raises(ApplyError):
        state.apply(CommandKind.TIER_CHANGE, command)


def test_a_local_offset_of_a_dropped_topic_gets_no_row() -> None:
    """Decided before the drop was applied; what the tier has of it goes by a change of its own."""
    state = State()
    state.change(CommitRanges(ref(1), [tiered(0, 10, 1)], 50))
    state.dropped.add((DropKind.TOPIC, 7))
    before = state.all_rows()
    assert state.apply(CommandKind.TIER_LOCAL, encode_tier_local([LocalQueue(7, 0, 5)]))
    assert state.all_rows() == before
    assert state.tier.local_offset(7, 0) == 0
