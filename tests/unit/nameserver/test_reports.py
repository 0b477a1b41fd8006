"""Reports of the leaders of raft groups: who leads what, and how much is looked at for it."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

from strata.meta.v1 import meta_pb2
from strata_nameserver.drafts.reports import Reports, node_facts
from strata_nameserver.state.topology import Topology

NODES = ("a", "b", "c")
GROUPS = range(1, 9)


def heartbeat(
    node_id: str, *led: tuple[int, int], no_longer: tuple[int, ...] = (), full: bool = False
) -> meta_pb2.HeartbeatRequest:
    """A storage node says that it leads these raft groups in these terms."""
    return meta_pb2.HeartbeatRequest(
        node_id=node_id,
        led=[meta_pb2.LedGroup(raft_group=number, term=term) for number, term in led],
        led_no_longer=no_longer,
        full=full,
    )


def test_who_leads_what_is_as_all_heartbeats_say() -> None:
    """A plain model, which looks at all raft groups for every heartbeat, says the same."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    reports = Reports()
    model: dict[int, tuple[str, int]] = {}
    for _ in range(2_000):
        node_id = chooser.choice(NODES)
        if chooser.random() < 0.05:
            reports.forget(node_id)
            model = {number: known for number, known in model.items() if known[0] != node_id}
            continue
        told = {
            number: chooser.randrange(4)
            for number in chooser.sample(GROUPS, chooser.randrange(len(GROUPS)))
        }
        no_longer = tuple(chooser.sample(GROUPS, chooser.randrange(3)))
        full = chooser.random() < 0.3
        reports.take(heartbeat(node_id, *told.items(), no_longer=no_longer, full=full), 0.0)
        for number, (leader, _) in list(model.items()):
            ended = number in no_longer or (full and number not in told)
            if leader == node_id and ended:
                del model[number]
        for number, term in told.items():
            if number not in model or model[number][1] <= term:
                model[number] = (node_id, term)

        assert reports.leaders() == {number: leader for number, (leader, _) in model.items()}


def lines_run(reports: Reports, request: meta_pb2.HeartbeatRequest) -> int:
    """Return how many lines of Python a heartbeat takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        reports.take(request, 0.0)
    finally:
        sys.settrace(before)
    return count


def test_a_heartbeat_takes_as_long_as_it_says_much() -> None:
    """Nobody looks at all raft groups of a large cluster because one node is alive."""
    lines = []
    for group_count in (10, 1_000):
        reports = Reports()
        numbers = range(1, group_count + 1)
        reports.take(heartbeat("a", *((number, 1) for number in numbers), full=True), 0.0)
        reports.take(heartbeat("b", (1, 2), full=True), 0.0)
        assert reports.leader_of(1) == "b"
        lines.append(
            [
                lines_run(reports, heartbeat("a")),
                lines_run(reports, heartbeat("a", (2, 1), no_longer=(3,))),
                lines_run(reports, heartbeat("b", (1, 2), full=True)),
            ]
        )
        assert reports.led() == set(numbers) - {3}

    assert lines[0] == lines[1]


def test_a_node_calls_its_own_replicas_damaged_and_no_others() -> None:
    """Neither one on another node, nor one of a raft group that it has another replica of."""
    topology = Topology()
    topology.raft_groups[1] = meta_pb2.RaftGroup(
        raft_group=1,
        replicas=[
            meta_pb2.Replica(replica_id=number, node_id=node_id)
            for number, node_id in enumerate(NODES, start=1)
        ],
        membership=meta_pb2.Membership(voters=(1, 2, 3)),
    )
    reports = Reports()
    request = heartbeat("a")
    request.damaged_replica_ids.extend((1, 2))
    reports.take(request, 0.0)
    reports.take(heartbeat("b"), 0.0)
    [facts] = reports.group_facts(topology)

    assert [replica.is_damaged for replica in facts.replicas] == [True, False, False]
    assert (facts.is_settled, facts.is_led) == (True, False), "its row is, but nobody leads it"


def test_a_node_is_down_for_as_long_as_leaders_saw_it() -> None:
    """Its row may say DOWN for longer: there may have been no nameserver that could hear it."""
    up, down = meta_pb2.NODE_STATE_UP, meta_pb2.NODE_STATE_DOWN
    nodes = [
        meta_pb2.Node(node_id="up", state=up, state_since_ms=1_000),
        meta_pb2.Node(node_id="down", state=down, state_since_ms=1_000),
    ]
    facts = node_facts(nodes, {}, {}, (), (), 10_000, {"up": 100, "down": 3_000}.__getitem__)

    ages = {node.node_id: (node.state_ms, node.down_ms) for node in facts}
    assert ages == {"up": (9_000, 100), "down": (9_000, 3_000)}
