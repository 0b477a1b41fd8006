"""Rows that a nameserver calls durable survive a power loss: each sync has a test without it."""

from __future__ import annotations

from collections.abc import Sequence

from strata.meta.v1 import command_pb2
from strata_metadata.watch import WatchHub
from strata_multiraft.base.snapshots import SnapshotRows
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.state.machine import MetadataMachine
from strata_nameserver.state.snapshots import MetadataSnapshots
from strata_raft import Configuration, Entry, EntryKind, SnapshotMetadata
from strata_runtime.metrics import Metrics
from strata_state.metadata import Row
from strata_state.metadata_keys import APPLIED_KEY
from strata_testing.metadata_store import MemoryMetadataStore

SNAPSHOT = SnapshotMetadata(7, 1, Configuration(frozenset({1})))
OLD_ROW = b"\x01old"


class LosingStore(MemoryMetadataStore):
    """Keeps what was synced beside what was written."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        super().__init__()
        self.synced: list[Row] = []
        self.write(rows)

    def sync(self) -> None:
        self.synced = list(self.scan(b"", b"\xff"))

    def after_power_loss(self) -> LosingStore:
        """Return what is left: the write-ahead log up to the last sync."""
        left = LosingStore(self.synced)
        left.sync()
        return left


def machine_on(store: LosingStore) -> MetadataMachine:
    return MetadataMachine(store, hub_on(store), NameserverConfig(), metrics=Metrics.disabled())


def hub_on(store: LosingStore) -> WatchHub:
    return WatchHub(store, 0, NameserverConfig().watch_options(), metrics=Metrics.disabled())


def snapshots_on(store: LosingStore) -> MetadataSnapshots:
    return MetadataSnapshots(store, machine_on(store), hub_on(store))


def applied_row(index: int) -> Row:
    return APPLIED_KEY, command_pb2.AppliedState(index=index, term=1).SerializeToString()


def no_op(index: int) -> Entry:
    return Entry(1, index, EntryKind.NO_OP, (b"",))


def test_the_persisted_index_survives() -> None:
    """Both what a start finds of a killed process, and what is synced later."""
    store = LosingStore([applied_row(5)])
    machine = machine_on(store)
    assert machine.persisted_index() == 5
    assert machine_on(store.after_power_loss()).applied_index() == 5
    machine.apply([no_op(6)])
    assert machine.persisted_index() == 5
    machine.sync()
    assert machine.persisted_index() == 6
    assert machine_on(store.after_power_loss()).applied_index() == 6


def begun() -> tuple[LosingStore, MetadataSnapshots]:
    store = LosingStore([applied_row(5), (OLD_ROW, b"1")])
    store.sync()
    snapshots = snapshots_on(store)
    snapshots.begin_install(SNAPSHOT)
    return store, snapshots


def test_an_install_that_began_is_known_to_have_begun() -> None:
    """Else rows of two states would be taken for one."""
    store, _ = begun()
    lost = store.after_power_loss()
    assert snapshots_on(lost).is_installing()
    assert machine_on(lost).applied_index() == 0


def test_an_install_that_ended_has_ended() -> None:
    """Rows and applied index are there; the mark is not."""
    store, snapshots = begun()
    key, value = applied_row(7)
    snapshots.install_rows(SnapshotRows((b"\x01new", key), (b"2", value)))
    snapshots.finish_install(SNAPSHOT)
    lost = store.after_power_loss()
    assert not snapshots_on(lost).is_installing()
    assert (lost.get(b"\x01new"), lost.get(OLD_ROW)) == (b"2", None)
    assert machine_on(lost).applied_index() == 7


def test_an_install_that_was_given_up_leaves_nothing() -> None:
    """The replica is empty, durably, before it takes part again."""
    store, snapshots = begun()
    snapshots.install_rows(SnapshotRows((b"\x01new",), (b"2",)))
    store.sync()
    snapshots.abandon_install()
    lost = store.after_power_loss()
    assert not snapshots_on(lost).is_installing()
    assert list(lost.scan(b"", b"\xff")) == []
