"""The picture of a cluster: states of raft groups and nodes, and what is told of them."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_metadata.cluster_health import ClusterJudge, ClusterPicture, Facts
from strata_runtime.health import Severity
from strata_testing import ManualClock

NODES = ("a", "b", "c")
UP = meta_pb2.NODE_STATE_UP
SUSPECT = meta_pb2.NODE_STATE_SUSPECT
DOWN = meta_pb2.NODE_STATE_DOWN
HEALTHY = {node: meta_pb2.StorageHealth() for node in NODES}


class Looking:
    """A judge whose time is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0)
        self.judge = ClusterJudge(self.clock)

    def check(self, facts: Facts, after_s: float = 0.0) -> ClusterPicture:
        self.clock.advance(after_s)
        return self.judge.judge(facts)


def node(
    node_id: str,
    state: meta_pb2.NodeState.ValueType = UP,
    kind: meta_pb2.NodeKind.ValueType = meta_pb2.NODE_KIND_STORAGE,
    *,
    draining: bool = False,
) -> meta_pb2.Node:
    endpoints = [f"{node_id}:1"]
    return meta_pb2.Node(
        node_id=node_id, kind=kind, state=state, endpoints=endpoints, draining=draining
    )


def raft_group(number: int = 1) -> meta_pb2.RaftGroup:
    replicas = [
        meta_pb2.Replica(replica_id=10 * number + at, node_id=each) for at, each in enumerate(NODES)
    ]
    return meta_pb2.RaftGroup(raft_group=number, replicas=replicas)


def facts(**changes: object) -> Facts:
    every = Facts([node(each) for each in NODES], [raft_group()], {1: "a"}, HEALTHY)
    return every._replace(**changes)  # type: ignore[arg-type]


def said(picture: ClusterPicture) -> list[tuple[str, str, str]]:
    return [(each.kind, each.name, each.state) for each in picture.problems]


def test_a_whole_cluster_is_healthy() -> None:
    """Everything there, everything led: nothing to tell."""
    picture = Looking().check(facts())
    assert (picture.status, picture.problems, picture.serves) == ("healthy", (), True)
    assert picture.groups_by_state() == {"SERVING": 1, "DEGRADED": 0, "LEADERLESS": 0}
    assert (picture.groups[1].live, picture.groups[1].wanted) == (3, 3)


def test_one_dead_node_leaves_its_raft_groups_degraded() -> None:
    """Either may notice first: this broker's own connection, or the nameservers."""
    for change in (
        {"unreached": {"b"}},
        {"nodes": [node("a"), node("b", DOWN), node("c")]},
        {"told": HEALTHY | {"a": lacking(missing=11)}},
    ):
        picture = Looking().check(facts(**change))
        assert picture.status == "degraded"
        assert ("raft_group", "1", "DEGRADED") in said(picture)
        assert picture.groups[1].reason == "2 of 3 replicas; missing: b"
        assert picture.serves


def lacking(missing: int = 0, mark: int = 0, own_mark: int = 0) -> meta_pb2.StorageHealth:
    group = meta_pb2.LackingGroup(
        raft_group=1, missing_replica_ids=[missing] if missing else (), disk_mark=mark
    )
    return meta_pb2.StorageHealth(disk_mark=own_mark, lacking=[group])


def test_nobody_leads() -> None:
    """An election is no outage; one that does not end is, and its end is told at once."""
    looking = Looking()
    lost = facts(leaders={}, unreached={"b", "c"})
    first = looking.check(lost)
    assert first.groups[1].state == "DEGRADED"
    assert looking.judge.is_waiting
    picture = looking.check(lost, 1.5)
    assert not looking.judge.is_waiting
    assert (picture.status, picture.serves) == ("down", False)
    assert picture.problems[0].line() == (
        "raft group 1 LEADERLESS: no leader; 1 of 3 replicas can be reached; missing: b, c"
    )
    assert {("node", "b", "UNREACHABLE"), ("node", "c", "UNREACHABLE")} <= set(said(picture))
    assert looking.check(facts()).problems == ()


def test_why_a_replica_takes_no_part_is_told() -> None:
    """A raft group with a damaged replica and nobody to lead it says so."""
    looking = Looking()
    stopped = meta_pb2.StoppedReplica(raft_group=1, reason="its log is damaged")
    broken = facts(leaders={}, told=HEALTHY | {"a": meta_pb2.StorageHealth(stopped=[stopped])})
    looking.check(broken)
    assert "a: its log is damaged" in looking.check(broken, 2.0).groups[1].reason


def test_full_disks() -> None:
    """One node's mark is a problem of the node; one that the quorum needs stops sends, or all."""
    one = Looking().check(facts(told=HEALTHY | {"b": meta_pb2.StorageHealth(disk_mark=3)}))
    assert said(one) == [("disk", "b", "STOP")]
    assert one.status == "degraded"
    for mark, serves in ((1, True), (2, False), (3, False)):
        picture = Looking().check(facts(told=HEALTHY | {"a": lacking(mark=mark, own_mark=mark)}))
        assert (picture.status, picture.serves) == ("down", serves)
        assert picture.groups[1].state == "DEGRADED"
        assert "sends are refused" in picture.groups[1].reason


def test_a_nameserver_with_a_full_disk() -> None:
    """It is named as long as it is there, and who has gone is a dead node and no full disk."""
    rows = [node("n", kind=meta_pb2.NODE_KIND_NAMESERVER), *(node(each) for each in NODES)]
    looking = Looking()
    [problem] = looking.check(facts(nodes=rows, full_nameservers={"n"})).problems
    assert (problem.kind, problem.name, problem.state) == ("disk", "n", "STOP")
    assert "no changes of the metadata" in problem.detail
    assert looking.check(facts(nodes=rows)).status == "healthy"
    rows[0].state = meta_pb2.NODE_STATE_DOWN
    assert said(looking.check(facts(nodes=rows, full_nameservers={"n"}))) == [("node", "n", "DOWN")]


def test_old_metadata_say_that_they_are_old() -> None:
    """With no nameserver, states of others are unknown; storage nodes are seen all the same."""
    meta, broker = meta_pb2.NODE_KIND_NAMESERVER, meta_pb2.NODE_KIND_BROKER
    nodes = [node("a", SUSPECT), node("b"), node("c"), node("n", kind=meta), node("x", kind=broker)]
    picture = Looking().check(facts(nodes=nodes, metadata_age_s=12.0, unreached={"b"}))
    assert picture.is_stale
    assert {name: each.state for name, each in picture.nodes.items()} == {
        "a": "up",
        "b": "down",
        "c": "up",
        "n": "unknown",
        "x": "unknown",
    }
    [stale] = [each for each in picture.problems if each.kind == "metadata"]
    assert stale.detail == "12 s old: no nameserver with a majority answers"
    picture = Looking().check(facts(nodes=nodes, metadata_age_s=12.0, metadata_trouble="went back"))
    assert "12 s old: went back" in {each.detail for each in picture.problems}
    assert picture.status == "degraded"


def test_draining_is_no_problem_and_a_lasting_doubt_is() -> None:
    """A drained node is named and the cluster is healthy; SUSPECT counts when it lasts."""
    picture = Looking().check(facts(nodes=[node("a", draining=True), node("b"), node("c")]))
    assert said(picture) == [("node", "a", "DRAINING")]
    assert (picture.status, picture.problems[0].severity) == ("healthy", Severity.NOTE)
    looking = Looking()
    doubt = facts(nodes=[node("a", SUSPECT), node("b"), node("c")])
    assert looking.check(doubt).problems == ()
    assert said(looking.check(doubt, 5.0)) == [("node", "a", "SUSPECT")]


def test_a_replica_that_joins_is_missing_until_it_takes_part() -> None:
    """A replica that the row wants and the configuration lacks is not there."""
    row = raft_group()
    row.membership.configuration_index = 7
    row.membership.voters.extend((10, 11))
    picture = Looking().check(facts(raft_groups=[row]))
    assert picture.groups[1].reason == "2 of 3 replicas; missing: c"


def test_the_tier_is_told_of() -> None:
    """Reports of storage nodes on the object store are passed on."""
    told = meta_pb2.StorageHealth(tier_state="UNREACHABLE", tier_detail="connection refused")
    assert Looking().check(facts(told=HEALTHY | {"c": told})).problems[0].line() == (
        "tier c UNREACHABLE: connection refused"
    )
