"""One reader of snapshots and changes for all views: rows count when a revision is whole."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_metadata import ClusterView
from strata_metadata.tables import TablesReader


class Names:
    """Keeps names of nodes, and those of the tables that it replaced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.replaced: list[str] = []

    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""
        self.names.append(change.node.node_id)

    def replaces(self, others: Names) -> None:
        """Remember what was there before."""
        self.replaced = others.names


def part(
    *nodes: str, revision: int = 0, begins: bool = False, of: int = 0
) -> meta_pb2.WatchResponse:
    """Return a response with rows of nodes; `of`: revision of the snapshot it belongs to."""
    response = meta_pb2.WatchResponse(revision=revision, snapshot=begins, snapshot_revision=of)
    for node_id in nodes:
        response.changes.add().node.node_id = node_id
    return response


def test_a_snapshot_counts_with_its_last_part() -> None:
    """Before, readers see the rows of the revision before; then all of the new ones at once."""
    reader = TablesReader(Names)
    assert reader.apply(part("old", revision=3))
    assert not reader.apply(part("a", begins=True, of=7))
    assert not reader.apply(part("b", of=7))
    assert (reader.revision, reader.tables.names) == (3, ["old"])
    assert reader.apply(part("c", revision=7, of=7))
    assert (reader.revision, reader.tables.names) == (7, ["a", "b", "c"])
    assert reader.tables.replaced == ["old"]


def test_a_snapshot_that_breaks_off_is_forgotten() -> None:
    """By another snapshot, and by changes."""
    reader = TablesReader(Names)
    reader.apply(part("a", begins=True, of=7))
    reader.apply(part("b", begins=True, of=8))
    assert reader.apply(part("c", revision=8, of=8))
    assert reader.tables.names == ["b", "c"]
    reader.apply(part("d", begins=True, of=9))
    assert reader.apply(part("e", revision=9))
    assert (reader.revision, reader.tables.names) == (9, ["b", "c", "e"])


def test_a_broker_and_a_storage_node_see_the_same_rows_at_the_same_revision() -> None:
    """The rows may arrive in any parts."""
    broker, storage = MetadataView(), ClusterView()
    for response in (
        part("a", begins=True, of=7),
        part("b", revision=7, of=7),
        part("c", revision=8),
        part("d", begins=True, of=9),
        part("e", revision=9),
        part("f", begins=True, of=10),
    ):
        broker.apply(response)
        storage.apply(response)
        assert broker.revision == storage.revision
        assert broker.nodes() == storage.nodes()
    assert [node.node_id for node in storage.nodes()] == ["a", "b", "c", "e"]


def test_both_views_mirror_the_same_placement() -> None:
    """Raft groups, slots and their moves come, change and go alike, and by number."""
    broker, storage = MetadataView(), ClusterView()
    slots = meta_pb2.SlotRange(first_slot=8, slot_count=2, raft_group=2)
    rows = [
        meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=2, broker_name="strata-2")),
        meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=1, broker_name="strata-1")),
        meta_pb2.Change(slots=slots),
        meta_pb2.Change(slot_move=meta_pb2.SlotMove(from_raft_group=2, slots=[8])),
        meta_pb2.Change(slot_move=meta_pb2.SlotMove(from_raft_group=1, slots=[3])),
    ]
    gone = [meta_pb2.Change(deleted=True), meta_pb2.Change(deleted=True)]
    gone[0].slot_move.from_raft_group = 1
    gone[1].slots.CopyFrom(meta_pb2.SlotRange(first_slot=9, slot_count=1, raft_group=2))
    seen = []
    for revision, changes in ((1, rows), (2, gone)):
        response = meta_pb2.WatchResponse(revision=revision, changes=changes)
        for view in (broker, storage):
            view.apply(response)
            groups = [row.broker_name for row in view.raft_groups()]
            moves = [row.from_raft_group for row in view.slot_moves()]
            seen.append((groups, list(view.slots())[7:11], moves))
    assert seen[0] == seen[1] == (["strata-1", "strata-2"], [0, 2, 2, 0], [1, 2])
    assert seen[2] == seen[3] == (["strata-1", "strata-2"], [0, 2, 0, 0], [2])


def test_topics_alone_move_nothing_and_a_snapshot_always_does() -> None:
    """The version of a storage node's view tells those who wait for placement to change."""
    view = ClusterView()
    response = meta_pb2.WatchResponse(revision=1)
    response.changes.add().topic.name = "orders"
    view.apply(response)
    assert (view.revision, view.version) == (1, 0)
    view.apply(part("a", revision=2))
    view.apply(meta_pb2.WatchResponse(revision=3))
    assert (view.revision, view.version) == (3, 1)
    view.apply(meta_pb2.WatchResponse(revision=4, snapshot=True, snapshot_revision=4))
    assert (view.version, view.nodes()) == (2, [])
