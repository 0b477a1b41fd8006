"""Registration: replicas, slots, ids that are never reused, heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_mq.slots import SLOT_COUNT
from strata_nameserver.config import NameserverConfig
from strata_nameserver.errors import MetaError

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


def storage(node_id: str, boot_id: int = 1) -> meta_pb2.Node:
    return meta_pb2.Node(node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, boot_id=boot_id)


def broker(node_id: str, advertised: str = "127.0.0.1:8081") -> meta_pb2.Node:
    return meta_pb2.Node(
        node_id=node_id, kind=meta_pb2.NODE_KIND_BROKER, advertised_endpoint=advertised
    )


async def test_the_first_storage_node_owns_all_slots_striped(
    small_nameserver: Nameserver,
) -> None:
    """Two raft groups share the slots alternately, each with a replica id of its own (rule 19)."""
    hosted = await small_nameserver.metadata.register_node(storage("a"))

    assert [(h.raft_group.raft_group, h.raft_group.broker_name) for h in hosted] == [
        (1, "strata-1"),
        (2, "strata-2"),
    ]
    assert [h.replica_id for h in hosted] == [1, 2]
    slots = [
        {s for r in h.slots for s in range(r.first_slot, r.first_slot + r.slot_count)}
        for h in hosted
    ]
    assert slots == [set(range(0, SLOT_COUNT, 2)), set(range(1, SLOT_COUNT, 2))]


async def test_registering_again_gives_the_same(nameserver: Nameserver) -> None:
    """A node that comes back, also to a restarted nameserver, hosts what it hosted."""
    first = await nameserver.metadata.register_node(storage("b"))
    revision = nameserver.machine.revision
    again = await nameserver.metadata.register_node(storage("b"))
    unchanged = nameserver.machine.revision
    rebooted = await nameserver.restarted().metadata.register_node(storage("b", boot_id=2))

    assert first == again == rebooted
    assert unchanged == revision


async def test_a_later_storage_node_gets_raft_groups_but_no_slots(nameserver: Nameserver) -> None:
    """Slots stay where they are until somebody moves them; replica ids go on counting."""
    hosted = await nameserver.metadata.register_node(storage("b"))

    assert [h.raft_group.broker_name for h in hosted] == ["strata-3", "strata-4"]
    assert [h.replica_id for h in hosted] == [3, 4]
    assert [list(h.slots) for h in hosted] == [[], []]


async def test_an_emptied_folder_comes_as_another_node(nameserver: Nameserver) -> None:
    """A new node id never gets a replica id that was given before (rule 8)."""
    before = await nameserver.metadata.register_node(storage("storage-a"))
    after = await nameserver.restarted().metadata.register_node(storage("storage-b"))

    assert not {h.replica_id for h in before} & {h.replica_id for h in after}
    assert not {h.raft_group.raft_group for h in before} & {h.raft_group.raft_group for h in after}


async def test_one_raft_group_owns_every_slot_in_one_run(make_nameserver: MakeNameserver) -> None:
    """With one raft group per node the slot map is a single row."""
    nameserver = make_nameserver(NameserverConfig(raft_groups_per_storage_node=1))
    hosted = await nameserver.metadata.register_node(storage("a"))

    assert [(r.first_slot, r.slot_count) for r in hosted[0].slots] == [(0, SLOT_COUNT)]


async def test_a_broker_registers_its_address(nameserver: Nameserver) -> None:
    """A broker hosts nothing; a new address is a change, the time of registration stays."""
    assert await nameserver.metadata.register_node(broker("b")) == []
    nameserver.clock.now_ms += 5_000
    await nameserver.metadata.register_node(broker("b", "10.0.0.7:8081"))
    _, rows = await nameserver.metadata.snapshot()
    row = next(row.node for row in rows if row.node.node_id == "b")

    assert row.advertised_endpoint == "10.0.0.7:8081"
    assert row.registered_at_ms == nameserver.clock.now_ms - 5_000


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (storage(""), "node_id must be"),
        (storage("a b"), "node_id must be"),
        (meta_pb2.Node(node_id="x"), "kind is missing"),
        (broker("x", "nowhere"), "advertised_endpoint must be host:port"),
        (
            meta_pb2.Node(node_id="x", kind=meta_pb2.NODE_KIND_STORAGE, endpoints=["e"] * 9),
            "at most 8 endpoints",
        ),
        (broker("storage-a"), "is registered as NODE_KIND_STORAGE"),
    ],
)
async def test_a_refused_node_says_why(
    nameserver: Nameserver, node: meta_pb2.Node, reason: str
) -> None:
    """A node that cannot be kept is INVALID with a clear text."""
    with pytest.raises(MetaError, match=reason):
        await nameserver.metadata.register_node(node)


async def test_the_limit_on_nodes_holds(small_nameserver: Nameserver) -> None:
    """One more than allowed is LIMIT_REACHED; a known node may still come back."""
    await small_nameserver.metadata.register_node(storage("a"))
    with pytest.raises(MetaError, match="1 nodes already"):
        await small_nameserver.metadata.register_node(storage("b"))
    await small_nameserver.metadata.register_node(storage("a"))


async def test_heartbeats_keep_a_node_alive(nameserver: Nameserver) -> None:
    """Silence makes a node not alive, a heartbeat alive again; nothing is written."""
    await nameserver.metadata.register_node(storage("a", boot_id=7))
    revision = nameserver.machine.revision
    nameserver.clock.now_ms += 10_001
    silent = nameserver.metadata.nodes_alive()
    nameserver.metadata.heartbeat("a", 7)

    assert (silent["a"], nameserver.metadata.nodes_alive()["a"]) == (False, True)
    assert nameserver.machine.revision == revision


async def test_a_heartbeat_of_an_unknown_boot_is_told_to_register(nameserver: Nameserver) -> None:
    """After a restart of either side the node must register first."""
    with pytest.raises(MetaError, match="node storage-a must register first"):
        nameserver.metadata.heartbeat("storage-a", 99)
    with pytest.raises(MetaError, match="must register first"):
        nameserver.restarted().metadata.heartbeat("storage-a", 1)
