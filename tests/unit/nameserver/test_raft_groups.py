"""Rows of raft groups: what operators, leaders and placement change, and the controller's turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts.raft_groups import carry_out
from strata_nameserver.policies.replicas import ChangeReplica
from tests.unit.nameserver.storage_nodes import CONFIG, NODES, Storage, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


@pytest.fixture
async def three(make_nameserver: MakeNameserver) -> Storage:
    """Three storage nodes with three raft groups of three replicas."""
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    for node_id in NODES:
        await nameserver.metadata.register_node(storage(node_id))
    return Storage(nameserver, NODES)


def hosts(row: meta_pb2.RaftGroup) -> list[str]:
    return sorted(replica.node_id for replica in row.replicas)


async def test_a_replica_leaves_only_with_the_configuration(three: Storage) -> None:
    """A replica that is no longer desired is `leaving` until no configuration names it."""
    metadata = three.nameserver.metadata
    await metadata.register_node(storage("d"))
    row = await metadata.change_replicas(
        meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=["d"], remove_node_ids=["a"])
    )
    assert hosts(row) == ["b", "c", "d"]
    assert [replica.node_id for replica in row.leaving] == ["a"]
    new = next(replica for replica in row.replicas if replica.node_id == "d")
    assert new.replica_id == 10 and new.replica_id not in row.initial_replica_ids

    joint = meta_pb2.Membership(
        configuration_index=5,
        voters=[r.replica_id for r in row.replicas],
        outgoing=row.membership.voters,
    )
    await report(three, joint)
    assert [replica.node_id for replica in three.row(1).leaving] == ["a"]
    final = meta_pb2.Membership(configuration_index=6, voters=[r.replica_id for r in row.replicas])
    await report(three, final)
    assert [replica.node_id for replica in three.row(1).leaving] == ["a"], "not settled yet"
    await report(three, final, settled_revision=three.row(1).revision)
    assert list(three.row(1).leaving) == []
    await report(three, joint)
    assert three.row(1).membership == final


async def test_a_replica_that_may_become_a_voter_is_not_forgotten(three: Storage) -> None:
    """Taken off before any report named it: its leader's change may be under way all the same."""
    metadata = three.nameserver.metadata
    await metadata.register_node(storage("d"))
    row = await metadata.change_replicas(
        meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=["d"], remove_node_ids=["a"])
    )
    step = ChangeReplica(1, row.replicas[-1].replica_id, "", "it is drained again")
    await metadata.change(lambda draft: carry_out(draft, [step], []))
    assert [replica.node_id for replica in three.row(1).leaving] == ["a", "d"]
    voters = [replica.replica_id for replica in three.row(1).replicas]
    two = meta_pb2.Membership(configuration_index=7, voters=voters)
    await report(three, two, settled_revision=row.revision)
    assert [replica.node_id for replica in three.row(1).leaving] == ["a", "d"]
    await report(three, two, settled_revision=three.row(1).revision)
    assert list(three.row(1).leaving) == []


async def test_what_replaces_a_read_replica_only_reads(three: Storage) -> None:
    """Placement moves learners, too; a raft group never gets a further voter by that."""
    metadata = three.nameserver.metadata
    await metadata.register_node(storage("d"))
    await metadata.register_node(storage("e"))
    row = await metadata.change_replicas(
        meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=["d"], learners=True)
    )
    step = ChangeReplica(1, row.replicas[-1].replica_id, "e", "d is DOWN", is_learner=True)
    await metadata.change(lambda draft: carry_out(draft, [step], []))
    replicas = {replica.node_id: replica.learner for replica in three.row(1).replicas}
    assert replicas == {"a": False, "b": False, "c": False, "e": True}


async def report(
    three: Storage, membership: meta_pb2.Membership, settled_revision: int = 0
) -> None:
    three.nameserver.metadata.heartbeat(
        meta_pb2.HeartbeatRequest(
            node_id="b",
            boot_id=1,
            led=[
                meta_pb2.LedGroup(
                    raft_group=1,
                    term=3,
                    membership=membership,
                    settled_revision=settled_revision,
                )
            ],
        )
    )
    await three.nameserver.metadata.controller.step(0.0)


async def test_an_operators_change_is_checked(three: Storage) -> None:
    """Each refusal says why; a second change waits for the first one."""
    metadata = three.nameserver.metadata
    await metadata.register_node(storage("d"))

    outcomes = []

    async def refused(**fields: object) -> str:
        with pytest.raises(MetaRefused) as caught:
            await metadata.change_replicas(
                meta_pb2.ChangeReplicasRequest(**fields)  # type: ignore[arg-type]
            )
        outcomes.append(caught.value.outcome)
        return caught.value.reason

    assert await refused(raft_group=99, add_node_ids=["d"]) == "raft group 99 does not exist"
    assert await refused(raft_group=1) == "name nodes to add or to remove"
    assert "does not exist" in await refused(raft_group=1, add_node_ids=["nobody"])
    assert "already" in await refused(raft_group=1, add_node_ids=["a"])
    assert "no replica" in await refused(raft_group=1, remove_node_ids=["d"])
    assert "no voter" in await refused(raft_group=1, remove_node_ids=list(NODES))
    await metadata.change_replicas(
        meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=["d"], learners=True)
    )
    # The CLI asks again after this outcome, so no other refusal may have it.
    assert meta_pb2.META_OUTCOME_CONFLICT not in outcomes
    assert "earlier change" in await refused(raft_group=1, remove_node_ids=["d"])
    assert outcomes[-1] == meta_pb2.META_OUTCOME_CONFLICT


async def test_a_leader_is_preferred_among_the_voters(three: Storage) -> None:
    """A node without a voter is refused; no wish is the empty one."""
    metadata = three.nameserver.metadata
    with pytest.raises(MetaRefused, match="has no voter"):
        await metadata.prefer_leader(1, "nobody")
    row = await metadata.prefer_leader(1, "c")
    assert row.preferred_leader_node_id == "c"
    assert (await metadata.prefer_leader(1, "")).preferred_leader_node_id == ""


async def test_nothing_is_given_to_a_node_that_drains(three: Storage) -> None:
    """Neither a replica nor a leadership, by whomever: placement would take it away again."""
    metadata = three.nameserver.metadata
    await metadata.register_node(storage("d"))
    await metadata.drain_node("d", draining=True)
    await metadata.drain_node("c", draining=True)
    for learners in (False, True):
        request = meta_pb2.ChangeReplicasRequest(
            raft_group=1, add_node_ids=["d"], learners=learners
        )
        with pytest.raises(MetaRefused, match="node d is draining"):
            await metadata.change_replicas(request)
    with pytest.raises(MetaRefused, match="node c is draining"):
        await metadata.prefer_leader(1, "c")
    await metadata.drain_node("d", draining=False)
    row = await metadata.change_replicas(request)
    assert "d" in hosts(row)


async def test_a_node_that_joins_gets_replicas_one_by_one(three: Storage) -> None:
    """Raft groups change one after another (max_moves_in_flight), leaders follow, then rest.

    The node brings a raft group of its own.
    """
    three.alive.add("d")
    await three.nameserver.metadata.register_node(storage("d"))
    for _ in range(30):
        await three.run(200)
        assert sum(bool(row.leaving) for row in three.rows().values()) <= 1
    counts = [sum(n in hosts(row) for row in three.rows().values()) for n in (*NODES, "d")]
    assert counts == [3, 3, 3, 3], "three replicas of each of the four raft groups"
    revision = three.nameserver.machine.revision
    await three.run(5_000)

    assert three.nameserver.machine.revision == revision
    reasons = three.nameserver.metadata.controller.reasons
    assert any("replica to d" in text for number in three.rows() for text in reasons(number))


class Disks(Storage):
    """Storage nodes that say what share of their disks is used."""

    def __init__(self, nameserver: Nameserver, node_ids: tuple[str, ...]) -> None:
        super().__init__(nameserver, node_ids)
        self.used: dict[str, float] = {}

    def load_of(self, node_id: str) -> meta_pb2.StorageLoad:
        free = round(1_000 * (1 - self.used.get(node_id, 0.5)))
        return meta_pb2.StorageLoad(disk_free_bytes=free, disk_total_bytes=1_000)


async def test_a_rather_full_disk_gets_no_replicas_for_evenness(three: Storage) -> None:
    """Not when its node joins, not before a restarted node's first heartbeat; with room it does."""
    disks, metadata = Disks(three.nameserver, (*NODES, "d")), three.nameserver.metadata
    disks.used["d"] = 0.71
    await metadata.register_node(storage("d"))
    await disks.run(6_000)
    assert [hosts(row) for row in disks.rows().values()] == [list(NODES)] * 4
    again = storage("d")
    again.boot_id = 2
    await metadata.register_node(again)
    disks.alive.remove("d")
    await disks.run(1_100)
    assert [hosts(row) for row in disks.rows().values()] == [list(NODES)] * 4
    await metadata.register_node(storage("d"))
    disks.alive.add("d")
    disks.used["d"] = 0.69
    await disks.run(6_000)

    assert sum("d" in hosts(row) for row in disks.rows().values()) == 3


async def test_raft_groups_of_nodes_that_join_come_with_all_replicas(
    make_nameserver: MakeNameserver,
) -> None:
    """A raft group of two would stop for good with either node; the third node is waited for."""
    config = NameserverConfig(
        initial_storage_nodes=1, raft_groups_per_storage_node=1, leader_balance_delay_ms=1_000
    )
    nameserver = make_nameserver(config)
    nameserver.machine.on_leader(1)
    nodes = Storage(nameserver, ("a",))
    await nameserver.metadata.register_node(storage("a"))
    nodes.alive.add("b")
    await nameserver.metadata.register_node(storage("b"))
    await nodes.run(5_000)
    assert {number: hosts(row) for number, row in nodes.rows().items()} == {1: ["a", "b"]}

    nodes.alive.add("c")
    await nameserver.metadata.register_node(storage("c"))
    await nodes.run(5_000)
    assert [len(row.initial_replica_ids) for row in nodes.rows().values()] == [1, 3, 3]
    assert all(hosts(row) == list(NODES) for row in nodes.rows().values())


async def test_a_dead_node_is_down_and_repaired_after_the_delay(three: Storage) -> None:
    """Its leaders go with it at once, its replicas after the delay, to the spare node."""
    three.alive.add("d")
    await three.nameserver.metadata.register_node(storage("d"))
    await three.run(6_000)
    three.alive.discard("a")
    await three.run(1_300)
    nodes = three.nameserver.machine.speculative.topology.nodes
    assert nodes["a"].state == meta_pb2.NODE_STATE_DOWN
    assert any("a" in hosts(row) for row in three.rows().values())
    await three.run(9_000)

    assert all("a" not in hosts(row) for row in three.rows().values())
    assert all(len(row.replicas) == 3 and not row.leaving for row in three.rows().values())
    await three.nameserver.metadata.remove_node("a", force=False)
    assert "a" not in nodes


async def test_time_without_a_nameserver_is_no_time_of_being_down(three: Storage) -> None:
    """A node that starts some seconds after a leader keeps its replicas; a dead one does not."""
    three.alive.add("d")
    await three.nameserver.metadata.register_node(storage("d"))
    await three.run(6_000)
    before = {number: hosts(row) for number, row in three.rows().items()}
    assert any("a" in node_ids for node_ids in before.values())
    three.alive.discard("a")
    await three.run(2_500)
    nodes = three.nameserver.machine.speculative.topology.nodes
    assert nodes["a"].state == meta_pb2.NODE_STATE_DOWN
    three.nameserver.clock.advance(3_600)
    three.nameserver = three.nameserver.restarted()
    three.nameserver.machine.on_leader(2)
    await three.run(4_000)
    assert {number: hosts(row) for number, row in three.rows().items()} == before
    await three.run(9_000)

    assert all("a" not in hosts(row) for row in three.rows().values())


async def test_a_node_that_stood_still_is_asked_for_what_it_leads(three: Storage) -> None:
    """Its reports were forgotten when it was DOWN, and it does not know: it says what is new."""
    await three.run(3_000)
    metadata = three.nameserver.metadata
    mine = [number for number in three.rows() if metadata.reports.leader_of(number) == "a"]
    assert mine
    three.alive = {"b", "c"}
    for _ in range(14):
        three.nameserver.clock.advance(0.1)
        for node_id in sorted(three.alive):
            assert not metadata.heartbeat(only_news(node_id, three.alive))
        await metadata.controller.step(0.0)
    node = three.nameserver.machine.speculative.topology.nodes["a"]
    assert node.state == meta_pb2.NODE_STATE_DOWN
    assert [metadata.reports.leader_of(number) for number in mine] == [""] * len(mine)

    assert metadata.heartbeat(only_news("a", set(NODES))), "all of it is wanted"
    full = only_news("a", set(NODES))
    full.full = True
    full.led.extend(meta_pb2.LedGroup(raft_group=number, term=1) for number in mine)
    assert not metadata.heartbeat(full)
    assert [metadata.reports.leader_of(number) for number in mine] == ["a"] * len(mine)


def only_news(node_id: str, alive: set[str]) -> meta_pb2.HeartbeatRequest:
    """A heartbeat of a node that has nothing new to say of what it leads."""
    return meta_pb2.HeartbeatRequest(
        node_id=node_id,
        boot_id=1,
        heard_node_ids=sorted(alive - {node_id}),
        unheard_node_ids=sorted(set(NODES) - alive),
    )


async def test_a_drained_node_can_be_removed_when_it_is_empty(three: Storage) -> None:
    """Before, the removal says what is still there; draining outlives a restart of the node."""
    metadata = three.nameserver.metadata
    three.alive.add("d")
    await metadata.register_node(storage("d"))
    await metadata.drain_node("b", draining=True)
    rebooted = storage("b")
    rebooted.boot_id = 1
    rebooted.endpoints.append("elsewhere:1")
    await metadata.register_node(rebooted)
    with pytest.raises(MetaRefused, match=r"has replicas of 3 raft groups .*--force"):
        await metadata.remove_node("b", force=False)
    await three.run(10_000)

    assert three.nameserver.machine.speculative.topology.nodes["b"].draining
    assert all("b" not in hosts(row) for row in three.rows().values())
    assert all(row.preferred_leader_node_id != "b" for row in three.rows().values())
    await metadata.remove_node("b", force=False)


async def test_leaders_stay_off_a_node_whose_clock_was_wrong_just_now(three: Storage) -> None:
    """None is sent there while it says so, nor for leader_balance_delay_ms afterwards."""

    def preferred() -> set[str]:
        return {row.preferred_leader_node_id for row in three.rows().values()}

    await three.run(2_000)
    assert preferred() == set(NODES)
    three.clocks_off = {"b"}
    await three.run(2_000)
    assert "b" not in preferred()
    for off in (set(), {"b"}, set()):
        three.clocks_off = off
        await three.run(900)
        assert "b" not in preferred()
    await three.run(2_000)
    assert preferred() == set(NODES)


async def test_many_transitions_share_one_change(three: Storage) -> None:
    """Two nodes that die together are one revision."""
    await three.run(3_000)
    revision = three.nameserver.machine.revision
    three.alive = {"c"}
    for _ in range(14):
        three.nameserver.clock.advance(0.1)
        three.beat()
        await three.nameserver.metadata.controller.step(0.0)
    states = {
        n.node_id: n.state for n in three.nameserver.machine.speculative.topology.nodes.values()
    }

    assert states["a"] == states["b"] == meta_pb2.NODE_STATE_DOWN
    # SUSPECT for both, DOWN for both.
    assert three.nameserver.machine.revision == revision + 2


async def test_a_new_leader_starts_over(three: Storage) -> None:
    """It knows no reports, so it moves nothing and judges nobody until it heard everybody."""
    await three.run(3_000)
    revision = three.nameserver.machine.revision
    three.nameserver.machine.on_follower(2, 9)
    three.nameserver.machine.on_leader(3)
    for _ in range(11):
        three.nameserver.clock.advance(0.1)
        await three.nameserver.metadata.controller.step(0.0)

    assert three.nameserver.machine.revision == revision


async def test_the_last_storage_node_that_runs_stays(three: Storage) -> None:
    """It is neither drained nor removed while no other one could take over, but by force."""
    metadata = three.nameserver.metadata
    await metadata.drain_node("b", draining=True)
    await metadata.drain_node("c", draining=True)
    with pytest.raises(MetaRefused, match="only storage node that runs"):
        await metadata.drain_node("a", draining=True)
    with pytest.raises(MetaRefused, match="only storage node that runs"):
        await metadata.remove_node("a", force=False)
    await metadata.drain_node("b", draining=False)
    assert (await metadata.drain_node("a", draining=True)).draining
