"""Changes that are too large for one raft entry: cut into several, or refused; no loop ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.view import NO_RAFT_GROUP
from strata_nameserver.drafts.raft_groups import put_more_raft_groups
from tests.unit.nameserver.storage_nodes import CONFIG, Storage, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


def changes_of(nameserver: Nameserver) -> list[list[meta_pb2.Change]]:
    """The rows of each entry of the metadata log, oldest first."""
    return [
        list(command_pb2.Command.FromString(b"".join(entry.payload)).changes)
        for entry in nameserver.replica.entries
    ]


def raft_groups_in(changes: list[meta_pb2.Change]) -> int:
    return sum(change.HasField("raft_group") for change in changes)


async def test_many_raft_groups_are_added_in_several_changes(
    make_nameserver: MakeNameserver,
) -> None:
    """More for each of five nodes: 200 with one turn of placement, the others with the next."""
    node_ids = ("a", "b", "c", "d", "e")
    small = make_nameserver(CONFIG.model_copy(update={"initial_storage_nodes": 5}))
    for node_id in node_ids:
        await small.metadata.register_node(storage(node_id))
    large = make_nameserver(
        small.config.model_copy(update={"raft_groups_per_storage_node": 64}),
        small.store,
        small.clock,
    )
    large.machine.on_leader(1)
    storages = Storage(large, node_ids)
    for _ in range(30):
        if len(storages.rows()) == 5 * 64:
            break
        await storages.run(200)

    added = [number for number in map(raft_groups_in, changes_of(large)) if number > 1]
    assert added == [200, 115]
    assert sorted(storages.rows()) == list(range(1, 5 * 64 + 1))


async def test_a_cluster_of_very_many_raft_groups_forms_with_the_first(
    make_nameserver: MakeNameserver,
) -> None:
    """They own all slots and fit into an entry, whatever their nodes are called."""
    node_ids = tuple(f"{number:064}" for number in range(16))
    nameserver = make_nameserver(
        CONFIG.model_copy(
            update={
                "initial_storage_nodes": 16,
                "replication_factor": 7,
                "raft_groups_per_storage_node": 64,
            }
        )
    )
    nameserver.machine.on_leader(1)
    for node_id in node_ids:
        await nameserver.metadata.register_node(storage(node_id))
    storages = Storage(nameserver, node_ids)
    assert len(storages.rows()) == 1_000
    assert all(len(row.replicas) == 7 for row in storages.rows().values())
    owners = set(nameserver.machine.speculative.topology.slot_owners)
    assert owners == set(storages.rows())
    assert NO_RAFT_GROUP not in owners
    for _ in range(3):
        nameserver.clock.advance(1.1)
        storages.beat()
        await nameserver.metadata.controller.step(0.0)

    assert len(storages.rows()) == 16 * 64


async def test_what_very_many_raft_groups_report_is_written_in_several_changes(
    make_nameserver: MakeNameserver,
) -> None:
    """All leaders have new configurations at once."""
    nameserver = make_nameserver(CONFIG.model_copy(update={"initial_storage_nodes": 1}))
    nameserver.machine.on_leader(1)
    await nameserver.metadata.register_node(storage("a"))
    for _ in range(5):
        await nameserver.metadata.change(lambda draft: put_more_raft_groups(draft, [["a"]] * 1_000))
    rows = nameserver.machine.speculative.topology.raft_groups
    led = [
        meta_pb2.LedGroup(
            raft_group=number,
            term=1,
            membership=meta_pb2.Membership(
                configuration_index=2, voters=row.membership.voters, learners=range(10_000, 10_030)
            ),
        )
        for number, row in rows.items()
    ]
    await nameserver.metadata.controller.step(0.0)
    nameserver.metadata.heartbeat(
        meta_pb2.HeartbeatRequest(node_id="a", boot_id=1, full=True, led=led)
    )
    written = len(nameserver.replica.entries)
    for _ in range(6):
        await nameserver.metadata.controller.step(0.0)

    assert all(row.membership.configuration_index == 2 for row in rows.values())
    assert list(map(raft_groups_in, changes_of(nameserver)[written:])) == [1_000] * 5 + [1]


async def test_a_change_that_no_entry_holds_is_refused(nameserver: Nameserver) -> None:
    """It leaves no trace, and the next change is made."""
    before = nameserver.machine.revision
    many = [["storage-a"]] * 20_000
    with pytest.raises(MetaRefused, match=r"it writes 20000 rows with \d+ bytes") as caught:
        await nameserver.metadata.change(lambda draft: put_more_raft_groups(draft, many))
    assert caught.value.outcome == meta_pb2.META_OUTCOME_LIMIT_REACHED
    assert nameserver.machine.speculative.changes_in_flight == 0
    await nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))

    assert nameserver.machine.revision == before + 1
    assert len(nameserver.machine.speculative.topology.raft_groups) == 2
