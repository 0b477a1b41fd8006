"""Slow storage nodes: found by comparison, after a while, and trusted again later."""

from __future__ import annotations

import math
from random import Random

import pytest

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.slowness import SlownessOptions, SlowNodes
from strata_runtime.failslow import FailSlowOptions
from strata_testing import ManualClock


class Nodes:
    """Heartbeats of storage nodes every 250 ms."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.slow_nodes = SlowNodes(SlownessOptions(5.0, 50.0, 10.0), clock)

    def run(self, duration_ms: int, **latencies_ms: float) -> set[str]:
        """Return who is slow after that time."""
        slow: set[str] = set()
        for _ in range(0, duration_ms, 250):
            self.clock.advance(0.25)
            for node_id, latency_ms in latencies_ms.items():
                load = meta_pb2.StorageLoad(append_latency_ms=latency_ms)
                self.slow_nodes.measured(node_id, load)
            slow = set(self.slow_nodes.judge())
        return slow


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(ManualClock())


def test_a_node_that_is_slow_for_long_is_found(nodes: Nodes) -> None:
    """Not a burst, but ten seconds of five times the others."""
    assert nodes.run(20_000, a=10, b=12, c=11) == set()
    assert nodes.run(2_000, a=400, b=12, c=11) == set()
    assert nodes.run(20_000, a=10, b=12, c=11) == set()
    assert nodes.run(20_000, a=400, b=12, c=11) == {"a"}


def test_what_is_slow_for_all_is_nobodys_fault(nodes: Nodes) -> None:
    """A busy machine slows everybody down."""
    assert nodes.run(30_000, a=900, b=700, c=800) == set()


def test_below_the_floor_nobody_is_slow(nodes: Nodes) -> None:
    """Forty times two microseconds is still fast."""
    assert nodes.run(30_000, a=49, b=1, c=1) == set()


def test_a_node_alone_is_not_slow(nodes: Nodes) -> None:
    """There is nobody to compare it with."""
    assert nodes.run(30_000, a=5_000) == set()


def test_it_is_trusted_again_when_it_is_much_better(nodes: Nodes) -> None:
    """Half of the limit for ten seconds."""
    assert nodes.run(20_000, a=400, b=10, c=10) == {"a"}
    assert nodes.run(30_000, a=45, b=10, c=10) == {"a"}
    assert nodes.run(30_000, a=20, b=10, c=10) == set()


def test_one_that_shows_nothing_is_tried_again(nodes: Nodes) -> None:
    """It leads nothing, so nothing is appended there: after a minute it may lead again."""
    assert nodes.run(20_000, a=400, b=10, c=10) == {"a"}
    assert nodes.run(59_000, a=0, b=10, c=10) == {"a"}
    assert nodes.run(2_000, a=0, b=10, c=10) == set()


class Cluster:
    """Three nodes with the learned rule on, whose latencies follow their load."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        print(f"seed {seed}")
        self.random, self.clock, self.windows = Random(seed), clock, 0
        learned = FailSlowOptions(floor_ms=10.0)
        self.slow_nodes = SlowNodes(SlownessOptions(5.0, 50.0, 10.0, learned), clock)

    def run(self, minutes: int, leads: str = "abc", **times: float) -> set[str]:
        """Return who was slow at any time; `times` multiplies latencies of single nodes."""
        seen: set[str] = set()
        for _ in range(minutes * 60):
            self.clock.advance(1)
            wave = 0.5 + 0.3 * math.sin(self.clock.wall_ms() / 600_000)
            for node_id in "abc":
                load = wave * self.random.uniform(0.9, 1.1)
                sync_ms = 12.0 * (1 + load) * self.random.uniform(0.9, 1.15)
                sync_ms *= times.get(node_id, 1.0) * (5.0 if self.random.random() < 0.003 else 1.0)
                append_ms = 1.4 * sync_ms if node_id in leads else 0.0
                self.slow_nodes.measured(
                    node_id,
                    meta_pb2.StorageLoad(
                        appended_bytes=int(load * 30e6),
                        append_latency_ms=append_ms,
                        sync_latency_ms=sync_ms,
                    ),
                )
            seen |= set(self.slow_nodes.judge())
        return seen


def test_the_learned_rule_finds_a_node_that_the_other_one_does_not(nodes: Nodes) -> None:
    """Three times slower is less than the first rule asks for; the reason is told, and it ends."""
    cluster = Cluster(nodes.clock, 5)
    assert cluster.run(20) == set()
    assert cluster.run(3, b=3.0) == {"b"}
    [reason] = cluster.slow_nodes.judge().values()
    assert "times what its peers need" in reason
    # Its leaders have left it, its syncs tell that it is still slow.
    assert cluster.run(5, leads="ac", b=3.0) == {"b"}
    cluster.run(3)
    assert cluster.run(10) == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_hour_raises_no_alarm(nodes: Nodes, seed: int) -> None:
    """Load that rises and falls, noise, outliers: nobody is called slow."""
    assert Cluster(nodes.clock, seed).run(60) == set()


class Witnesses:
    """Nodes that lead nothing, and tell how long the others' answers took."""

    def __init__(self, clock: ManualClock, node_ids: str) -> None:
        self.random, self.clock, self.node_ids = Random(4), clock, node_ids
        # The node that reports nothing.
        self.mute = ""
        learned = FailSlowOptions(floor_ms=10.0)
        self.rule = SlowNodes(SlownessOptions(5.0, 50.0, 10.0, learned), clock)

    def run(self, minutes: int, **delay_ms: float) -> set[str]:
        """Return who is slow; what a node in `delay_ms` sends leaves so much later."""
        for _ in range(minutes * 60):
            self.clock.advance(1)
            for witness in self.node_ids:
                load = meta_pb2.StorageLoad(appended_bytes=10**7)
                for other in self.node_ids.replace(witness, ""):
                    took_ms = 5.0 + delay_ms.get(other, 0.0) + delay_ms.get(witness, 0.0)
                    took_ms *= self.random.uniform(0.9, 1.1)
                    load.answers.add(node_id=other, latency_ms=took_ms)
                if witness != self.mute:
                    self.rule.measured(witness, load)
        return set(self.rule.judge())


@pytest.mark.parametrize("node_ids", ["abc", "abcde"])
def test_a_slow_network_shows_in_the_answers(nodes: Nodes, node_ids: str) -> None:
    """It finds all others slow, which is not believed; they all find it slow."""
    witnesses = Witnesses(nodes.clock, node_ids)
    assert witnesses.run(15) == set()
    assert witnesses.run(2, b=25.0) == {"b"}
    [reason] = witnesses.rule.judge().values()
    assert reason.startswith("answers take ")
    witnesses.run(2)
    assert witnesses.run(1) == set()


def test_a_node_whose_heartbeats_do_not_come_through_is_found(nodes: Nodes) -> None:
    """It is DOWN for the nameserver, while the others still get answers from it, late."""
    witnesses = Witnesses(nodes.clock, "abc")
    assert witnesses.run(15) == set()
    witnesses.mute = "b"
    witnesses.rule.silent("b")
    assert witnesses.run(2, b=25.0) == {"b"}
    witnesses.mute = ""
    assert witnesses.run(1, b=25.0) == {"b"}
    witnesses.run(2)
    assert witnesses.run(1) == set()


def test_of_a_node_that_is_gone_nothing_is_believed(nodes: Nodes) -> None:
    """Others may tell of it a little longer."""
    witnesses = Witnesses(nodes.clock, "abc")
    assert witnesses.run(15) == set()
    witnesses.mute = "b"
    witnesses.rule.forget("b")
    assert witnesses.run(15, b=25.0) == set()


def test_one_witness_is_not_believed(nodes: Nodes) -> None:
    """Neither of two nodes can say which one is slow."""
    witnesses = Witnesses(nodes.clock, "ab")
    assert witnesses.run(15) == set()
    assert witnesses.run(5, b=100.0) == set()


def test_slow_appends_hold_while_a_node_leads_nothing(nodes: Nodes) -> None:
    """A delayed network shows in appends only, and those went away with the leaders."""
    random, rule = (
        Random(3),
        SlowNodes(SlownessOptions(100.0, 1e6, 10.0, FailSlowOptions(floor_ms=10.0)), nodes.clock),
    )

    def run(minutes: int, **append_ms: float) -> set[str]:
        for _ in range(minutes * 60):
            nodes.clock.advance(1)
            for node_id, latency_ms in append_ms.items():
                latency_ms *= random.uniform(0.9, 1.1)
                load = meta_pb2.StorageLoad(appended_bytes=10**7, append_latency_ms=latency_ms)
                rule.measured(node_id, load)
        return set(rule.judge())

    assert run(15, a=20, b=20, c=20) == set()
    assert run(2, a=20, b=90, c=20) == {"b"}
    assert run(8, a=20, b=0, c=20) == {"b"}
    assert run(4, a=20, b=0, c=20) == set(), "it is tried again after ten minutes"
