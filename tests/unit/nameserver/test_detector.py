"""Failure detection under a manual clock: who is silent, who vouches, when nobody is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.detector import DetectorOptions, FailureDetector
from strata_testing import ManualClock

UP, SUSPECT, DOWN = (
    meta_pb2.NODE_STATE_UP,
    meta_pb2.NODE_STATE_SUSPECT,
    meta_pb2.NODE_STATE_DOWN,
)
STORAGE, BROKER = meta_pb2.NODE_KIND_STORAGE, meta_pb2.NODE_KIND_BROKER


class Nodes:
    """Nodes with heartbeats, and a detector whose transitions become their states."""

    def __init__(self, clock: ManualClock, kinds: Mapping[str, int]) -> None:
        self.clock = clock
        self.rows = {
            node_id: meta_pb2.Node(node_id=node_id, kind=kind, state=UP)  # type: ignore[arg-type]
            for node_id, kind in kinds.items()
        }
        self.detector = FailureDetector(DetectorOptions(0.75, 1.2), clock)
        self.silent: set[str] = set()
        self.unheard: dict[str, list[str]] = {}
        # Nodes of which no other one tells: it shares no raft group with them.
        self.untold: set[str] = set()
        self.run(2_000)

    def run(self, duration_ms: int, *, lag_ms: int = 0) -> None:
        """Let time pass in steps of 50 ms: everybody beats, then the detector judges."""
        for _ in range(0, duration_ms, 50):
            self.clock.advance(0.05)
            for node_id in self.rows:
                if node_id not in self.silent:
                    self.beat(node_id)
            self.judge(lag_ms)

    def beat(self, node_id: str) -> None:
        unheard = self.unheard.get(node_id, [])
        left_out = {node_id, *unheard, *self.untold}
        heard = [other for other in self.rows if other not in left_out]
        self.detector.heartbeat(
            meta_pb2.HeartbeatRequest(
                node_id=node_id, heard_node_ids=heard, unheard_node_ids=unheard
            )
        )

    def judge(self, lag_ms: int = 0) -> None:
        for transition in self.detector.judge(self.rows, lag_ms / 1_000):
            self.rows[transition.node_id].state = transition.state

    def states(self) -> dict[str, int]:
        return {node_id: node.state for node_id, node in self.rows.items()}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_silent_broker_is_suspect_then_down_then_up(clock: ManualClock) -> None:
    """At 750 ms, at 1,200 ms, and with its next heartbeat."""
    nodes = Nodes(clock, {"b1": BROKER, "b2": BROKER})
    nodes.silent = {"b1"}
    nodes.run(700)
    assert nodes.states() == {"b1": UP, "b2": UP}
    nodes.run(50)
    assert nodes.states() == {"b1": SUSPECT, "b2": UP}
    nodes.run(450)
    assert nodes.states() == {"b1": DOWN, "b2": UP}
    nodes.silent = set()
    nodes.run(50)
    assert nodes.states() == {"b1": UP, "b2": UP}


def test_a_storage_node_that_others_hear_is_only_suspect(clock: ManualClock) -> None:
    """Cut off from the nameserver alone, it goes on serving; unheard by most, it is DOWN."""
    nodes = Nodes(clock, dict.fromkeys(("s1", "s2", "s3", "s4"), STORAGE))
    nodes.silent = {"s1"}
    nodes.unheard = {"s2": ["s1"]}
    nodes.run(5_000)
    assert nodes.states()["s1"] == SUSPECT
    nodes.unheard["s3"] = ["s1"]
    nodes.run(100)
    assert nodes.states()["s1"] == DOWN


def test_two_of_three_storage_nodes_may_die_together(clock: ManualClock) -> None:
    """The one that is left is a majority of those that report."""
    nodes = Nodes(clock, dict.fromkeys(("s1", "s2", "s3"), STORAGE))
    nodes.silent = {"s1", "s2"}
    nodes.unheard = {"s3": ["s1", "s2"]}
    nodes.run(1_300)

    assert nodes.states() == {"s1": DOWN, "s2": DOWN, "s3": UP}


def test_a_storage_node_of_which_nobody_tells_is_judged_by_its_silence(
    clock: ManualClock,
) -> None:
    """It shares no raft group with those that report, for instance since its replicas moved."""
    nodes = Nodes(clock, dict.fromkeys(("s1", "s2", "s3"), STORAGE))
    nodes.untold = {"s1"}
    nodes.silent = {"s1"}
    nodes.run(1_150)
    assert nodes.states() == {"s1": SUSPECT, "s2": UP, "s3": UP}
    nodes.run(50)
    assert nodes.states() == {"s1": DOWN, "s2": UP, "s3": UP}


def test_a_storage_node_stays_down_until_it_is_heard(clock: ManualClock) -> None:
    """Not to be told of any more is no sign of life, nor is the silence of those that told."""
    nodes = Nodes(clock, dict.fromkeys(("s1", "s2", "s3"), STORAGE))
    nodes.silent = {"s1"}
    nodes.unheard = {"s2": ["s1"], "s3": ["s1"]}
    nodes.run(1_300)
    assert nodes.states()["s1"] == DOWN
    nodes.unheard, nodes.untold = {}, {"s1"}
    for silent in ({"s1"}, {"s1", "s2", "s3"}, {"s1"}):
        nodes.silent = silent
        for _ in range(40):
            nodes.run(50)
            assert nodes.states()["s1"] == DOWN
    nodes.untold = set()
    nodes.run(50)
    assert nodes.states()["s1"] == SUSPECT, "another node hears it"
    nodes.silent = set()
    nodes.run(50)
    assert nodes.states()["s1"] == UP


def test_nodes_without_a_row_leave_memory(clock: ManualClock) -> None:
    """Brokers that are replaced come with a new id each time; nobody says that they are gone."""
    nodes = Nodes(clock, {"b1": BROKER, "b2": BROKER})
    assert not nodes.detector.is_silent("b1")
    del nodes.rows["b1"]
    nodes.judge()

    assert nodes.detector.is_silent("b1"), "it was heard just now, but is not known any more"
    assert not nodes.detector.is_silent("b2")


class CountedRows(dict[str, meta_pb2.Node]):
    """Rows of nodes that count how often all of them are walked."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_all_silent_nodes_are_judged_by_one_walk(clock: ManualClock) -> None:
    """The storage nodes that report are found once, not again for each that is silent."""
    walks = []
    for silent_count in (1, 10):
        nodes = Nodes(clock, {f"s{number}": STORAGE for number in range(30)})
        nodes.silent = {f"s{number}" for number in range(silent_count)}
        nodes.unheard = dict.fromkeys(nodes.rows, sorted(nodes.silent))
        nodes.run(1_100)
        assert DOWN not in nodes.states().values()
        nodes.rows = rows = CountedRows(nodes.rows)
        rows.walks = 0
        clock.advance(0.11)
        nodes.judge()
        walks.append(rows.walks)
        assert list(nodes.states().values()).count(DOWN) == silent_count

    assert walks[0] == walks[1]


def test_when_nobody_reports_no_storage_node_is_down(clock: ManualClock) -> None:
    """Then it is this nameserver that is cut off."""
    nodes = Nodes(clock, {"s1": STORAGE, "s2": STORAGE, "b": BROKER})
    nodes.silent = {"s1", "s2", "b"}
    nodes.run(10_000)

    assert nodes.states() == {"s1": SUSPECT, "s2": SUSPECT, "b": DOWN}


def test_a_single_storage_node_is_judged_by_its_silence(clock: ManualClock) -> None:
    """It has no peers that could vouch for it."""
    nodes = Nodes(clock, {"s": STORAGE})
    nodes.silent = {"s"}
    nodes.run(1_300)

    assert nodes.states() == {"s": DOWN}


def test_a_new_leader_waits_a_full_timeout(clock: ManualClock) -> None:
    """Nobody is judged before; who was DOWN stays so until it is really heard."""
    nodes = Nodes(clock, {"b1": BROKER, "b2": BROKER})
    nodes.silent = {"b1", "b2"}
    nodes.rows["b2"].state = DOWN
    nodes.detector.reset(nodes.rows)
    nodes.run(1_150)
    assert nodes.states() == {"b1": UP, "b2": DOWN}
    nodes.run(100)
    assert nodes.states() == {"b1": DOWN, "b2": DOWN}


def test_after_a_loop_lag_nobody_is_judged(clock: ManualClock) -> None:
    """Heartbeats in the sockets come first (rule 14): they may be there already."""
    nodes = Nodes(clock, {"b": BROKER})
    clock.advance(5)
    nodes.judge(lag_ms=5_000)
    assert nodes.states() == {"b": UP}
    nodes.run(2_000)
    assert nodes.states() == {"b": UP}


def test_a_new_node_is_not_silent_from_the_beginning(clock: ManualClock) -> None:
    """A row that another leader wrote just before: its silence begins now."""
    nodes = Nodes(clock, {"b1": BROKER})
    nodes.rows["b2"] = meta_pb2.Node(node_id="b2", kind=BROKER, state=UP)
    nodes.silent = {"b2"}
    nodes.run(700)
    assert nodes.states()["b2"] == UP
    nodes.run(600)
    assert nodes.states()["b2"] == DOWN


def test_load_is_a_running_mean(clock: ManualClock) -> None:
    """A single burst does not make a node the most loaded one."""
    detector = FailureDetector(DetectorOptions(0.75, 1.2), clock)
    for appended_bytes in (0, 0, 1_000):
        detector.heartbeat(
            meta_pb2.HeartbeatRequest(
                node_id="s", load=meta_pb2.StorageLoad(appended_bytes=appended_bytes)
            )
        )

    assert detector.load_bytes("s") == pytest.approx(100)
    assert detector.load_bytes("unknown") == 0
