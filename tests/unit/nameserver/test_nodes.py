"""Registration: replicas, slots, ids that are never reused, heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.rows import change_to
from strata_mq.slots import SLOT_COUNT, slot_runs
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.state import removed_nodes
from strata_nameserver.state.removed_nodes import RemovedNodes

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


def storage(node_id: str, boot_id: int = 1) -> meta_pb2.Node:
    return meta_pb2.Node(node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, boot_id=boot_id)


def broker(node_id: str, advertised: str = "127.0.0.1:8081") -> meta_pb2.Node:
    return meta_pb2.Node(
        node_id=node_id, kind=meta_pb2.NODE_KIND_BROKER, advertised_endpoint=advertised
    )


def reached_at(*endpoints: str) -> meta_pb2.Node:
    return meta_pb2.Node(node_id="x", kind=meta_pb2.NODE_KIND_STORAGE, endpoints=endpoints)


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


async def test_the_slots_of_many_raft_groups_are_looked_at_once(
    nameserver: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a node that hosts many is made without walking all slots for each."""
    walks = Mock(wraps=slot_runs)
    monkeypatch.setattr("strata_nameserver.state.topology.slot_runs", walks)
    hosted = await nameserver.metadata.register_node(storage("storage-a"))

    assert [len(each.slots) for each in hosted] == [SLOT_COUNT // 2] * 2
    walks.assert_called_once()


async def test_registering_again_gives_the_same(nameserver: Nameserver) -> None:
    """A node that comes back, also to a restarted nameserver, hosts what it hosted."""
    first = await nameserver.metadata.register_node(storage("b"))
    revision = nameserver.machine.revision
    again = await nameserver.metadata.register_node(storage("b"))
    unchanged = nameserver.machine.revision
    rebooted = await nameserver.restarted().metadata.register_node(storage("b", boot_id=2))

    assert first == again == rebooted
    assert unchanged == revision


async def test_a_later_storage_node_gets_no_raft_group_of_its_own(nameserver: Nameserver) -> None:
    """The raft groups are those of the first nodes; a later one gets replicas by placement."""
    hosted = await nameserver.metadata.register_node(storage("b"))

    assert hosted == []
    assert sorted(nameserver.machine.speculative.topology.raft_groups) == [1, 2]


async def test_raft_groups_wait_for_the_initial_nodes(make_nameserver: MakeNameserver) -> None:
    """With three replicas nothing is made before the third node; then everything at once."""
    nameserver = make_nameserver(NameserverConfig())
    assert await nameserver.metadata.register_node(storage("a")) == []
    assert await nameserver.metadata.register_node(storage("b")) == []
    with pytest.raises(MetaRefused, match="no storage node"):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name="early"))
    hosted = await nameserver.metadata.register_node(storage("c"))
    rows = nameserver.machine.speculative.topology.raft_groups

    assert len(hosted) == len(rows) == 6
    for row in rows.values():
        assert {replica.node_id for replica in row.replicas} == {"a", "b", "c"}
        assert list(row.initial_replica_ids) == [replica.replica_id for replica in row.replicas]
        assert sorted(row.membership.voters) == sorted(row.initial_replica_ids)
    leaders = [row.preferred_leader_node_id for row in rows.values()]
    assert sorted(leaders) == ["a", "a", "b", "b", "c", "c"]
    replica_ids = [replica.replica_id for row in rows.values() for replica in row.replicas]
    assert sorted(replica_ids) == list(range(1, 19))


async def test_one_raft_group_owns_every_slot_in_one_run(make_nameserver: MakeNameserver) -> None:
    """With one raft group per node the slot map is a single row."""
    nameserver = make_nameserver(NameserverConfig(raft_groups_per_storage_node=1).alone())
    hosted = await nameserver.metadata.register_node(storage("a"))

    assert [(r.first_slot, r.slot_count) for r in hosted[0].slots] == [(0, SLOT_COUNT)]


async def test_a_broker_registers_its_address(nameserver: Nameserver) -> None:
    """A broker hosts nothing; a new address is a change, the time of registration stays."""
    assert await nameserver.metadata.register_node(broker("b")) == []
    nameserver.clock.advance(5)
    await nameserver.metadata.register_node(broker("b", "10.0.0.7:8081"))
    _, rows = await nameserver.metadata.snapshot()
    row = next(row.node for row in rows if row.node.node_id == "b")

    assert row.advertised_endpoint == "10.0.0.7:8081"
    assert row.registered_at_ms == nameserver.clock.wall_ms() - 5_000


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
        (broker("x", "b..example:8081"), "node x: endpoint 'b..example:8081' is not HOST:PORT"),
        (broker("x", "inproc:b"), "is not HOST:PORT"),
        (reached_at("node..example:1"), "node x: endpoint 'node..example:1' is not HOST:PORT"),
        (reached_at("fine:1", f"{'a' * 64}.example:1"), "is not HOST:PORT"),
        (reached_at("a\0b:1"), "is not HOST:PORT"),
        (reached_at("a b:1"), "is not HOST:PORT"),
        (reached_at(""), "is not HOST:PORT"),
        (reached_at("a"), "is not HOST:PORT"),
        (reached_at("a:0"), "is not HOST:PORT"),
        (reached_at("a:65536"), "is not HOST:PORT"),
        (
            meta_pb2.Node(
                node_id="x",
                kind=meta_pb2.NODE_KIND_BROKER,
                advertised_endpoint="b:8081",
                remoting_endpoint="b..example:9876",
            ),
            "is not HOST:PORT",
        ),
        (
            meta_pb2.Node(node_id="x", kind=meta_pb2.NODE_KIND_NAMESERVER, endpoints=["n"]),
            "is not HOST:PORT",
        ),
    ],
)
async def test_a_refused_node_says_why(
    nameserver: Nameserver, node: meta_pb2.Node, reason: str
) -> None:
    """A node that cannot be kept is INVALID with a clear text."""
    with pytest.raises(MetaRefused, match=reason) as caught:
        await nameserver.metadata.register_node(node)
    assert caught.value.outcome == meta_pb2.META_OUTCOME_INVALID


async def test_every_address_that_can_be_reached_is_kept(nameserver: Nameserver) -> None:
    """Names, IPv4, IPv6 in brackets, and what is reached inside a process."""
    endpoints = [
        "s1:9000",
        "10.0.0.7:1",
        "[::1]:65535",
        "my_host.svc.cluster.local:9877",
        "inproc:s",
    ]
    await nameserver.metadata.register_node(reached_at(*endpoints))

    assert nameserver.machine.speculative.topology.nodes["x"].endpoints == endpoints


async def test_the_limit_on_nodes_holds(small_nameserver: Nameserver) -> None:
    """One more than allowed is LIMIT_REACHED; a known node may still come back."""
    await small_nameserver.metadata.register_node(storage("a"))
    with pytest.raises(MetaRefused, match="1 nodes already"):
        await small_nameserver.metadata.register_node(storage("b"))
    await small_nameserver.metadata.register_node(storage("a"))


def heartbeat(node_id: str, boot_id: int = 1, **fields: object) -> meta_pb2.HeartbeatRequest:
    return meta_pb2.HeartbeatRequest(node_id=node_id, boot_id=boot_id, **fields)  # type: ignore[arg-type]


async def test_a_heartbeat_writes_nothing(nameserver: Nameserver) -> None:
    """It is soft state; the first one of a boot must be complete, then changes are enough."""
    revision = nameserver.machine.revision

    assert nameserver.metadata.heartbeat(heartbeat("storage-a")) is True
    assert nameserver.metadata.heartbeat(heartbeat("storage-a", full=True)) is False
    assert nameserver.metadata.heartbeat(heartbeat("storage-a")) is False
    assert nameserver.machine.revision == revision


async def test_a_heartbeat_of_an_unknown_boot_is_told_to_register(nameserver: Nameserver) -> None:
    """Boot ids are in the rows, so another nameserver knows a node without a registration."""
    assert nameserver.metadata.heartbeat(heartbeat("storage-a", 99, full=True)) is True
    assert nameserver.metadata.should_register(heartbeat("storage-a", 99))
    assert nameserver.metadata.heartbeat(heartbeat("storage-a")) is True, "that was another one's"
    assert not nameserver.metadata.should_register(heartbeat("storage-a"))
    with pytest.raises(MetaRefused, match="node nobody must register first") as refused:
        nameserver.metadata.heartbeat(heartbeat("nobody"))
    assert refused.value.outcome == meta_pb2.META_OUTCOME_NOT_FOUND

    assert nameserver.restarted().metadata.heartbeat(heartbeat("storage-a")) is True


def process(boot_id: int, started_at_ms: int) -> meta_pb2.Node:
    """A storage node as one of its processes registers."""
    node = storage("a", boot_id)
    node.started_at_ms = started_at_ms
    return node


def boot_of(nameserver: Nameserver) -> int:
    return nameserver.machine.speculative.topology.nodes["a"].boot_id


async def test_a_late_request_of_a_former_process_replaces_nothing(nameserver: Nameserver) -> None:
    """The new one is heard and started later, whatever boot ids were drawn."""
    metadata = nameserver.metadata
    await metadata.register_node(process(9, 1_000))
    await metadata.register_node(process(2, 2_000))
    assert boot_of(nameserver) == 2
    with pytest.raises(MetaRefused, match="registered as node a and started later") as refused:
        await metadata.register_node(process(9, 1_000))
    assert refused.value.outcome == meta_pb2.META_OUTCOME_CONFLICT
    assert boot_of(nameserver) == 2
    assert not metadata.should_register(heartbeat("a", 2))


async def test_a_process_that_was_replaced_by_its_former_one_comes_back(
    nameserver: Nameserver,
) -> None:
    """Nothing is known of a process that does not say when it started: the healthy one asks."""
    metadata = nameserver.metadata
    await metadata.register_node(process(2, 2_000))
    await metadata.register_node(process(9, 0))
    assert boot_of(nameserver) == 9
    assert metadata.heartbeat(heartbeat("a", 2)) is True
    assert metadata.should_register(heartbeat("a", 2))
    await metadata.register_node(process(2, 2_000))

    assert boot_of(nameserver) == 2
    assert not metadata.should_register(heartbeat("a", 2))


@pytest.mark.parametrize(("first", "second"), [((1, 1_000), (2, 2_000)), ((1, 0), (2, 0))])
async def test_of_two_processes_with_one_node_id_one_stays_out(
    nameserver: Nameserver, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """It is told why each time it asks; it takes over once the other one is silent."""
    metadata, clock = nameserver.metadata, nameserver.clock
    nameserver.machine.on_leader(1)
    await metadata.controller.step(0.0)
    await metadata.register_node(process(*first))
    metadata.heartbeat(heartbeat("a", 1))
    await metadata.register_node(process(*second))
    revision = nameserver.machine.revision
    for _ in range(20):
        clock.advance(0.25)
        metadata.heartbeat(heartbeat("a", 2))
        assert not metadata.should_register(heartbeat("a", 2))
        metadata.heartbeat(heartbeat("a", 1))
        assert metadata.should_register(heartbeat("a", 1))
        with pytest.raises(MetaRefused, match="they share a data folder or a copy of one"):
            await metadata.register_node(process(*first))
    assert (boot_of(nameserver), nameserver.machine.revision) == (2, revision)
    clock.advance(0.75)
    await metadata.register_node(process(*first))
    assert boot_of(nameserver) == 1
    assert metadata.should_register(heartbeat("a", 2))
    await metadata.register_node(process(*second))
    assert boot_of(nameserver) == 2


async def test_a_restart_with_a_clock_that_went_back_waits_for_silence(
    nameserver: Nameserver,
) -> None:
    """Its former process looks like a later one, but is heard no more in a moment."""
    metadata, clock = nameserver.metadata, nameserver.clock
    await metadata.register_node(process(1, 50_000))
    clock.advance(0.7)
    with pytest.raises(MetaRefused, match="is heard"):
        await metadata.register_node(process(2, 20_000))
    clock.advance(0.05)
    await metadata.register_node(process(2, 20_000))
    assert boot_of(nameserver) == 2


async def test_a_new_leader_has_heard_nobody_yet(nameserver: Nameserver) -> None:
    """It assumes that all nodes live; that is no reason to refuse one."""
    await nameserver.metadata.register_node(process(2, 2_000))
    again = nameserver.restarted()
    again.machine.on_leader(2)
    await again.metadata.controller.step(0.0)
    await again.metadata.register_node(process(1, 1_000))
    assert boot_of(again) == 1
    await again.metadata.register_node(process(2, 2_000))
    assert boot_of(again) == 2


@pytest.mark.parametrize("is_leader_new", [False, True])
async def test_a_late_request_of_a_removed_process_makes_no_row(
    nameserver: Nameserver, is_leader_new: bool
) -> None:
    """The node would stand among the others as one that is down; a restart of it is welcome."""
    metadata = nameserver.metadata
    await metadata.register_node(process(7, 1_000))
    await metadata.remove_node("a", force=True)
    if is_leader_new:
        nameserver.machine.on_follower(2, 2)
        nameserver.machine.on_leader(3)
    with pytest.raises(MetaRefused, match="was removed: start it again to join") as refused:
        await metadata.register_node(process(7, 1_000))
    assert refused.value.outcome == meta_pb2.META_OUTCOME_CONFLICT
    assert "a" not in nameserver.machine.speculative.topology.nodes
    await metadata.register_node(process(8, 2_000))
    assert boot_of(nameserver) == 8


async def test_a_follower_knows_what_its_leader_removed(nameserver: Nameserver) -> None:
    """It may lead when the late request arrives."""
    row = storage("a", 7)
    nameserver.machine.speculative.applied(1, (change_to(row), change_to(row, deleted=True)))
    with pytest.raises(MetaRefused, match="was removed"):
        await nameserver.metadata.register_node(row)


def started_broker(boot_id: int) -> meta_pb2.Node:
    """A broker as one of its processes registers."""
    node = broker("b")
    node.boot_id = boot_id
    return node


async def test_a_broker_that_was_removed_registers_again(nameserver: Nameserver) -> None:
    """Nameservers forget silent brokers, so a broker comes back by itself."""
    await nameserver.metadata.register_node(started_broker(3))
    await nameserver.metadata.remove_node("b", force=True)
    await nameserver.metadata.register_node(started_broker(3))
    assert "b" in nameserver.machine.speculative.topology.nodes


async def test_a_late_request_of_a_broker_that_left_makes_no_row(nameserver: Nameserver) -> None:
    """Its process has ended; the next one of it may come."""
    metadata, nodes = nameserver.metadata, nameserver.machine.speculative.topology.nodes
    await metadata.register_node(started_broker(3))
    await metadata.remove_node("b", force=True, boot_id=3)
    with pytest.raises(MetaRefused, match="was removed: start it again to join"):
        await metadata.register_node(started_broker(3))
    assert "b" not in nodes
    await metadata.register_node(started_broker(4))
    assert "b" in nodes


async def test_a_broker_that_left_late_does_not_take_the_next_process_off(
    nameserver: Nameserver,
) -> None:
    """It tries again in the background while no nameserver leads."""
    await nameserver.metadata.register_node(started_broker(4))
    with pytest.raises(MetaRefused, match="another process of node b is registered") as refused:
        await nameserver.metadata.remove_node("b", force=True, boot_id=3)
    assert refused.value.outcome == meta_pb2.META_OUTCOME_NOT_FOUND
    assert "b" in nameserver.machine.speculative.topology.nodes


def test_removed_nodes_are_remembered_in_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first."""
    monkeypatch.setattr(removed_nodes, "_MOST", 2)
    removed = RemovedNodes()
    for number in range(3):
        removed.take(change_to(storage(f"n{number}", number + 1), deleted=True))
    assert [number for number in range(3) if storage(f"n{number}", number + 1) in removed] == [1, 2]
