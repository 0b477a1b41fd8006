"""The first raft groups: made once enough machines are there, whoever is the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from tests.unit.nameserver.storage_nodes import CONFIG, NODES, Storage, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


def hosts(row: meta_pb2.RaftGroup) -> list[str]:
    return sorted(replica.node_id for replica in row.replicas)


def should_register(nameserver: Nameserver, node_id: str) -> bool:
    heartbeat = meta_pb2.HeartbeatRequest(node_id=node_id, boot_id=1)
    return nameserver.metadata.should_register(heartbeat)


def shard(machine: str, number: int, of: int) -> meta_pb2.Node:
    """A storage node of a machine that starts several."""
    node = storage(f"{machine}-{number}")
    node.machine, node.machine_nodes = machine, of
    return node


async def sharded(make_nameserver: MakeNameserver) -> Storage:
    """Three machines with two storage nodes each."""
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    nodes = [shard(machine, number, 2) for machine in "abc" for number in range(2)]
    for node in nodes:
        await nameserver.metadata.register_node(node)
    return Storage(nameserver, tuple(node.node_id for node in nodes))


async def test_raft_groups_wait_for_whole_machines(make_nameserver: MakeNameserver) -> None:
    """The first raft groups are made once three machines have all their storage nodes."""
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    for machine in "ab":
        for number in range(2):
            await nameserver.metadata.register_node(shard(machine, number, 2))
    await nameserver.metadata.register_node(shard("c", 0, 2))
    assert not nameserver.machine.speculative.topology.raft_groups
    await nameserver.metadata.register_node(shard("c", 1, 2))

    rows = nameserver.machine.speculative.topology.raft_groups.values()
    assert len(rows) == 6
    for row in rows:
        assert sorted(node_id[0] for node_id in hosts(row)) == ["a", "b", "c"]
    assert {node_id for row in rows for node_id in hosts(row)} == {
        f"{machine}-{number}" for machine in "abc" for number in range(2)
    }


async def test_an_operator_cannot_put_two_replicas_on_one_machine(
    make_nameserver: MakeNameserver,
) -> None:
    """Neither a voter nor a read replica; in place of the machine's own replica it may."""
    storages = await sharded(make_nameserver)
    metadata = storages.nameserver.metadata
    mine = next(node_id for node_id in hosts(storages.row(1)) if node_id.startswith("a"))
    other = {"a-0": "a-1", "a-1": "a-0"}[mine]
    for learners in (False, True):
        with pytest.raises(MetaRefused, match=f"machine a, where node {mine} has a replica"):
            await metadata.change_replicas(
                meta_pb2.ChangeReplicasRequest(
                    raft_group=1, add_node_ids=[other], learners=learners
                )
            )
    row = await metadata.change_replicas(
        meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=[other], remove_node_ids=[mine])
    )

    assert other in hosts(row)
    assert mine not in hosts(row)


async def test_no_first_raft_group_is_on_a_dead_node(make_nameserver: MakeNameserver) -> None:
    """A node whose folder was emptied leaves its old row behind: it counts for nothing."""
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    cluster = Storage(nameserver, ())
    for node_id in ("old-1", "old-2"):
        await nameserver.metadata.register_node(storage(node_id))
        cluster.alive = {node_id}
        await cluster.run(500)
        cluster.alive = set()
        await cluster.run(3_000)
    cluster.alive = set(NODES)
    for node_id in NODES[:2]:
        await nameserver.metadata.register_node(storage(node_id))
    assert not cluster.rows()
    await nameserver.metadata.register_node(storage(NODES[2]))

    assert [hosts(row) for row in cluster.rows().values()] == [list(NODES)] * 3


async def test_first_raft_groups_come_with_a_node_that_is_taken_back(
    make_nameserver: MakeNameserver,
) -> None:
    """It was drained while the last one registered."""
    nameserver = make_nameserver(CONFIG)
    for node_id in NODES[:2]:
        await nameserver.metadata.register_node(storage(node_id))
    await nameserver.metadata.drain_node("a", draining=True)
    await nameserver.metadata.register_node(storage("c"))
    topology = nameserver.machine.speculative.topology
    assert not topology.raft_groups
    await nameserver.metadata.drain_node("a", draining=False)

    assert [hosts(row) for row in topology.raft_groups.values()] == [list(NODES)] * 3
    assert set(topology.slot_owners) == {1, 2, 3}


async def test_first_raft_groups_come_with_a_node_that_registers_again(
    make_nameserver: MakeNameserver,
) -> None:
    """A nameserver that waits for fewer nodes finds them all there, and asks them to register."""
    waiting = CONFIG.model_copy(update={"initial_storage_nodes": 5})
    nameserver = make_nameserver(waiting)
    for node_id in NODES:
        await nameserver.metadata.register_node(storage(node_id))
        assert not should_register(nameserver, node_id)
    nameserver = make_nameserver(CONFIG, nameserver.store, nameserver.clock)
    nameserver.machine.on_leader(1)
    topology = nameserver.machine.speculative.topology
    assert not topology.raft_groups
    assert should_register(nameserver, "b")
    hosted = await nameserver.metadata.register_node(storage("b"))

    assert [one.raft_group.raft_group for one in hosted] == [1, 2, 3]
    assert [hosts(row) for row in topology.raft_groups.values()] == [list(NODES)] * 3
    assert not should_register(nameserver, "b")


async def test_a_node_that_comes_to_life_completes_the_first_ones(
    make_nameserver: MakeNameserver,
) -> None:
    """It stood still while the last one registered: its heartbeats tell it to register again."""
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    cluster = Storage(nameserver, NODES[:2])
    for node_id in NODES[:2]:
        await nameserver.metadata.register_node(storage(node_id))
    await cluster.run(500)
    cluster.alive = {"b"}
    await cluster.run(3_000)
    await nameserver.metadata.register_node(storage("c"))
    cluster.alive = {"b", "c"}
    await cluster.run(500)
    assert not cluster.rows() and not should_register(nameserver, "b")
    cluster.alive = set(NODES)
    await cluster.run(500)
    assert not cluster.rows() and should_register(nameserver, "a")
    await nameserver.metadata.register_node(storage("a"))

    assert [hosts(row) for row in cluster.rows().values()] == [list(NODES)] * 3
