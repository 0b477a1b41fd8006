"""Rows of a raft group as a snapshot: taken, installed, cut off by a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_mq.layout.rows import AppliedRow, LocalRow, QueueRow
from strata_multiraft import LogFull
from strata_raft import Configuration, SnapshotMetadata
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_state.ports import RowBatch, StateError
from strata_state.rows import GroupRows
from strata_storage.base.config import EngineOptions
from strata_storage.rows.machine import GroupMachine
from strata_storage.upkeep.group_snapshots import GroupSnapshots, claim_rows, drop_rows

GROUP = 3
METADATA = SnapshotMetadata(9, 2, Configuration(frozenset({1, 2})))


async def run_here(work: Callable[[], None]) -> None:
    work()


def machine_of(store: MemoryStore) -> GroupMachine:
    return GroupMachine(
        store,
        GROUP,
        Flusher(store, run_here),
        options=EngineOptions(queue_rows_max=10, cq_cache_bytes=1_000, broker_row_age_ms=1),
        on_leader=lambda term: None,
        on_follower=lambda term, leader: None,
    )


def snapshots_of(
    store: MemoryStore, replica_id: int, *, is_installing: bool = False
) -> GroupSnapshots:
    return GroupSnapshots(store, machine_of(store), replica_id, is_installing=is_installing)


def store_with_rows(replica_id: int) -> MemoryStore:
    """Rows of ten queues as of index 9, and a row of another raft group."""
    store = MemoryStore()
    claim_rows(store, GROUP, replica_id)
    machine = machine_of(store)
    batch = store.new_batch()
    for queue in range(10):
        machine.rows.queues.put(batch, 7, queue, QueueRow(queue + 1, 0, 5, 0))
    machine.rows.applied.put(batch, AppliedRow(9, 2, 1_000, 4))
    batch.put((GROUP + 1).to_bytes(4) + b"\x02other", b"other")
    store.write(batch)
    return store


def copy(source: GroupSnapshots, target: GroupSnapshots, *, max_bytes: int = 40) -> None:
    """Install everything, a few rows at a time."""
    reader, after = source.open_snapshot(), b""
    target.begin_install(METADATA)
    while True:
        rows = reader.read(after, max_bytes)
        if not rows.keys:
            break
        target.install_rows(rows)
        after = rows.keys[-1]
    reader.close()
    target.finish_install(METADATA)
    target.installed()


def test_an_installed_snapshot_has_the_same_rows_and_nothing_else() -> None:
    """All rows but the local one; what was there before is gone; it survives a crash."""
    source_store = store_with_rows(1)
    source = snapshots_of(source_store, 1)
    target_store = MemoryStore()
    claim_rows(target_store, GROUP, 2)
    target = snapshots_of(target_store, 2)
    rows = machine_of(target_store).rows
    batch = target_store.new_batch()
    rows.queues.put(batch, 99, 0, QueueRow(1, 0, 0, 0))
    target_store.write(batch)
    copy(source, target)
    left = machine_of(target_store.after_crash())
    assert left.applied_index() == 9
    assert left.low_index == 4
    assert list(left.rows.all()) == list(machine_of(source_store).rows.all())
    assert left.rows.local.get() == LocalRow(2)


def test_a_snapshot_is_as_of_its_opening_and_may_be_read_again_from_any_key() -> None:
    """Writes behind it do not show; a call that was cut goes on where it likes."""
    store = store_with_rows(1)
    reader = snapshots_of(store, 1).open_snapshot()
    first = reader.read(b"", 60)
    batch = store.new_batch()
    machine_of(store).rows.queues.put(batch, 7, 3, QueueRow(99, 99, 99, 0))
    store.write(batch)
    rest = reader.read(first.keys[-1], 10_000)
    again = reader.read(b"", 10_000)
    assert [*first.keys, *rest.keys] == list(again.keys)
    assert [*first.values, *rest.values] == list(again.values)
    assert QueueRow(99, 99, 99, 0).encode() not in again.values
    assert reader.index == 9


def test_a_crash_in_the_middle_of_an_install_leaves_no_row_and_the_mark() -> None:
    """The old rows are gone, the new ones incomplete: the replica must get a snapshot again."""
    source = snapshots_of(store_with_rows(1), 1)
    store = store_with_rows(2)
    store.flush()
    target = snapshots_of(store, 2)
    target.begin_install(METADATA)
    target.install_rows(source.open_snapshot().read(b"", 10_000))
    store.flush()
    crashed = store.after_crash()
    assert claim_rows(crashed, GROUP, 2)
    assert list(machine_of(crashed).rows.all()) == []
    again = snapshots_of(crashed, 2, is_installing=True)
    assert again.is_installing()
    copy(source, again)
    assert not claim_rows(crashed, GROUP, 2)
    assert machine_of(crashed).applied_index() == 9


def test_an_abandoned_install_leaves_an_empty_replica() -> None:
    """Durably: nothing of either state comes back."""
    store = store_with_rows(2)
    target = snapshots_of(store, 2)
    target.begin_install(METADATA)
    target.abandon_install()
    target.installed()
    crashed = store.after_crash()
    assert not claim_rows(crashed, GROUP, 2)
    assert list(machine_of(crashed).rows.all()) == []
    assert crashed.get((GROUP + 1).to_bytes(4) + b"\x02other") == b"other"


def test_rows_of_a_removed_replica_are_not_taken_over_by_the_next_one() -> None:
    """A new replica id of the same raft group starts empty on the same node."""
    store = store_with_rows(1)
    assert not claim_rows(store, GROUP, 1)
    assert machine_of(store).applied_index() == 9
    assert not claim_rows(store, GROUP, 5)
    assert machine_of(store).applied_index() == 0
    assert store.get((GROUP + 1).to_bytes(4) + b"\x02other") == b"other"


def unmarked(store: MemoryStore) -> MemoryStore:
    """Rows whose owner a crash took."""
    batch = store.new_batch()
    batch.delete(GroupRows(store, GROUP).local._prefix)
    store.write(batch)
    return store


def test_rows_without_an_owner_are_taken_over_by_nobody() -> None:
    """They could be those of a replica that has left."""
    store = unmarked(store_with_rows(1))
    assert machine_of(store).applied_index() == 9
    assert not claim_rows(store, GROUP, 5)
    assert machine_of(store).applied_index() == 0


def test_rows_without_an_owner_go_with_the_replica_that_leaves() -> None:
    """Those of another replica stay."""
    store = unmarked(store_with_rows(1))
    drop_rows(store, GROUP, 1)
    assert list(machine_of(store).rows.all()) == []
    store = store_with_rows(1)
    drop_rows(store, GROUP, 2)
    assert machine_of(store).applied_index() == 9


class FullStore(MemoryStore):
    """A store whose disk is full for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def _check(self) -> None:
        if self.is_full:
            raise StateError("No space left on device")

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return super().get(key)

    def write(self, batch: RowBatch) -> None:
        self._check()
        super().write(batch)

    def flush(self) -> None:
        self._check()
        super().flush()


def test_every_step_of_an_install_may_find_the_disk_full() -> None:
    """The driver is told in the way that it knows, and each step can be done again."""
    source = snapshots_of(store_with_rows(1), 1)
    store = FullStore()
    target = snapshots_of(store, 2)
    rows = source.open_snapshot().read(b"", 10_000)

    def when_there_is_room(step: Callable[[], None]) -> None:
        store.is_full = True
        for _ in range(2):
            with pytest.raises(LogFull, match="No space left"):
                step()
        store.is_full = False
        step()

    when_there_is_room(lambda: target.begin_install(METADATA))
    when_there_is_room(lambda: target.install_rows(rows))
    when_there_is_room(lambda: target.finish_install(METADATA))
    when_there_is_room(target.installed)
    left = machine_of(store.after_crash())
    assert (left.applied_index(), left.rows.local.get()) == (9, LocalRow(2))
    when_there_is_room(target.abandon_install)
    when_there_is_room(target.installed)
    assert list(machine_of(store.after_crash()).rows.all()) == []
