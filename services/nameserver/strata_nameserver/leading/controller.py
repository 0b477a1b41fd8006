"""The metadata leader's own loop: judges nodes, records reports, places replicas and slots.

One task. Every `judge_interval_ms` it writes the transitions of all nodes and the new
configurations of all raft groups in one command; every `placement_interval_ms` it writes the
placement of replicas, leaders and slots in one command. It looks at the current state each time
(level-triggered), so a change that was refused, or lost with the leadership, is simply chosen
again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts import nodes, raft_groups, slot_moves
from strata_nameserver.drafts.change import MakeChange
from strata_nameserver.drafts.reports import Reports, node_facts
from strata_nameserver.plans.service import Placement
from strata_nameserver.policies.detector import FailureDetector, Transition
from strata_nameserver.policies.down_times import DownTimes
from strata_nameserver.policies.facts import NodeFacts
from strata_nameserver.policies.leaders import plan_leaders
from strata_nameserver.policies.replicas import plan_replicas
from strata_nameserver.policies.slots import MoveSlots, SlotFacts, count_under_way, plan_slots
from strata_nameserver.policies.slowness import SlowNodes
from strata_nameserver.state.draft import Draft
from strata_nameserver.state.machine import MetadataMachine
from strata_nameserver.state.topology import Topology
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics

_KEPT_REASONS = 8
# Most rows of one kind in a change: it must fit into a raft entry. Later turns write the others.
_MAX_ROWS = 1_000


class NodesSeen(NamedTuple):
    """State of the nodes as a leading nameserver sees it.

    Attributes:
        detector: tells which nodes are up.
        reports: of the leaders of raft groups.
        slow_nodes: tells which nodes append slowly.
    """

    detector: FailureDetector
    reports: Reports
    slow_nodes: SlowNodes


class Controller:
    """See the module docstring.

    Args:
        machine: rows and leadership.
        change: proposes a change.
        seen: the state of the nodes.
        placement: loads, and the plan that runs.
        config: times and rules.
        clock: monotonic time for intervals, wall time for ages of states.
        metrics: transitions and moves.
    """

    def __init__(
        self,
        machine: MetadataMachine,
        change: MakeChange,
        seen: NodesSeen,
        *,
        placement: Placement,
        config: NameserverConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._machine = machine
        self._change = change
        self._detector, self._reports, self._slow_nodes = seen
        self._placement = placement
        self._config = config
        self._rules = config.placement_rules()
        self._judges = config.failure_detection
        self._down_times = DownTimes(config.replica_repair_delay_ms, clock)
        self._broker_forget_delay_ms = config.broker_forget_delay_ms
        self._placement_interval_s = config.placement_interval_ms / 1_000
        # With nobody to judge there is only placement to look at.
        interval_ms = config.judge_interval_ms if self._judges else config.placement_interval_ms
        self._interval_s = interval_ms / 1_000
        self._clock = clock
        self._term = 0
        self._placed_at_s = 0.0
        self._reasons: dict[int, deque[str]] = {}
        self._transitions_total = metrics.counter("strata_metadata_transitions_total")
        self._moves_total = metrics.counter("strata_metadata_moves_total")
        metrics.gauge("strata_metadata_slow_nodes", lambda: len(seen.slow_nodes.judge()))
        metrics.gauge("strata_metadata_moves_in_flight", self._moves_in_flight)
        metrics.gauge("strata_metadata_moves_maximum", lambda: self._rules.max_moves_in_flight)
        metrics.gauge("strata_metadata_slot_moves_in_flight", self._slot_moves_in_flight)
        metrics.gauge("strata_metadata_slot_moves_maximum", lambda: config.max_slot_moves_in_flight)
        self._logger = get_logger("nameserver")

    async def run(self) -> None:
        """Control for as long as this nameserver leads, and again when it leads again."""
        while True:
            await self._machine.leading.wait()
            due_s = self._clock.monotonic_s() + self._interval_s
            await asyncio.sleep(self._interval_s)
            lag_s = self._clock.monotonic_s() - due_s
            try:
                await self.step(lag_s)
            except MetaRefused as refused:
                self._logger.info("control step refused", reason=refused.reason)

    async def step(self, lag_s: float) -> None:
        """Do what is due now.

        Args:
            lag_s: how late the event loop runs.

        Raises:
            MetaRefused: leadership was lost, or there is no room for the change, or it is too
                large.
        """
        if not self._machine.leading.is_set():
            return
        if self._term != self._machine.leading_term:
            self._begin()
        topology = self._machine.speculative.topology
        transitions = self._detector.judge(topology.nodes, lag_s) if self._judges else []
        transitions = transitions[:_MAX_ROWS]
        down_times = self._count_down_times(topology, transitions)
        news = self._reports.news(topology)[:_MAX_ROWS]
        if transitions or down_times or news:
            await self._write_down(transitions, down_times, news)
        now_s = self._clock.monotonic_s()
        if now_s - self._placed_at_s >= self._placement_interval_s:
            self._placed_at_s = now_s
            await self._place()
            await self._placement.step()
            if self._judges:
                await self._change(
                    lambda draft: nodes.forget_brokers(draft, self._broker_forget_delay_ms)
                )

    def reasons(self, raft_group: int) -> Sequence[str]:
        """Return why a raft group was changed lately, oldest first; as far as this leader knows."""
        return tuple(self._reasons.get(raft_group, ()))

    def _begin(self) -> None:
        self._term = self._machine.leading_term
        self._detector.reset(self._machine.speculative.topology.nodes)
        self._down_times.reset()
        self._reports.reset()
        self._slow_nodes.reset()
        self._placement.reset()
        self._reasons.clear()
        # Nobody has reported yet, so there is nothing to place.
        self._placed_at_s = self._clock.monotonic_s()

    def _count_down_times(
        self, topology: Topology, transitions: Sequence[Transition]
    ) -> dict[str, int]:
        """Return the times DOWN to write; a row that changes anyway waits for the next look."""
        if not self._judges:
            return {}
        due = self._down_times.look(
            topology.nodes_of(meta_pb2.NODE_KIND_STORAGE), self._detector.is_silent
        )
        changing = {transition.node_id for transition in transitions}
        return dict([each for each in due.items() if each[0] not in changing][:_MAX_ROWS])

    async def _write_down(
        self,
        transitions: Sequence[Transition],
        down_times: Mapping[str, int],
        news: Sequence[meta_pb2.LedGroup],
    ) -> None:
        def decide(draft: Draft) -> None:
            nodes.change_states(draft, transitions)
            nodes.keep_down_times(draft, down_times)
            raft_groups.take_reports(draft, news)

        for transition in transitions:
            state = meta_pb2.NodeState.Name(transition.state).removeprefix("NODE_STATE_")
            self._transitions_total.add(1, {"state": state.lower()})
            self._logger.info(
                "node state", node=transition.node_id, state=state, reason=transition.reason
            )
            if transition.state == meta_pb2.NODE_STATE_DOWN:
                self._reports.forget(transition.node_id)
                self._detector.forgotten(transition.node_id)
                self._slow_nodes.silent(transition.node_id)
                self._placement.loads.forget(transition.node_id)
        await self._change(decide)

    async def _place(self) -> None:
        """Choose and write down what belongs elsewhere, all in one change."""
        topology = self._machine.speculative.topology
        facts = self._node_facts(topology)
        groups = self._reports.group_facts(topology)
        steps = plan_replicas(facts, groups, self._rules)
        changing = {step.raft_group for step in steps}
        wishes = [
            wish
            for wish in plan_leaders(facts, groups, self._rules)
            if wish.raft_group not in changing
        ][:_MAX_ROWS]
        layout = raft_groups.missing_raft_groups(facts, groups, self._config)
        moves = self._plan_slots(topology)
        if not (steps or wishes or layout or moves):
            return

        def decide(draft: Draft) -> None:
            raft_groups.carry_out(draft, steps, wishes)
            raft_groups.put_more_raft_groups(draft, layout)
            slot_moves.begin(draft, moves)

        await self._change(decide)
        for step in steps:
            what = f"replica to {step.add_node_id}" if step.add_node_id else "replica removed"
            self._note(step.raft_group, "replica", f"{what}: {step.reason}")
        for wish in wishes:
            what = f"leader to {wish.node_id or 'any node'}"
            self._note(wish.raft_group, "leader", f"{what}: {wish.reason}")
        for move in moves:
            what = f"{len(move.slots)} slots to raft group {move.to_raft_group}"
            self._note(move.from_raft_group, "slots", f"{what}: {move.reason}")
        if layout:
            self._moves_total.add(len(layout), {"kind": "raft_group"})
            self._logger.info("raft groups made", count=len(layout))

    def _node_facts(self, topology: Topology) -> list[NodeFacts]:
        storage = topology.nodes_of(meta_pb2.NODE_KIND_STORAGE)
        load_bytes = {node.node_id: self._detector.load_bytes(node.node_id) for node in storage}
        loads = self._placement.loads
        disks_used = {node.node_id: loads.disk_used(node.node_id) for node in storage}
        # A clock that was off lately may be off again soon.
        clocks_off = self._reports.clocks_off_since(
            self._clock.monotonic_s() - self._rules.leader_balance_delay_ms / 1_000
        )
        return node_facts(
            storage,
            load_bytes,
            disks_used,
            self._slow_nodes.judge(),
            clocks_off,
            self._clock.wall_ms(),
            self._down_times.down_ms,
        )

    def _plan_slots(self, topology: Topology) -> list[MoveSlots]:
        counters = self._machine.speculative.counters
        if not self._config.balance_slots:
            return []
        if counters.queue_override_count >= self._config.max_queue_overrides:
            return []
        return plan_slots(
            SlotFacts(
                topology.slot_owners,
                topology.slots_since,
                topology.slot_moves.values(),
                self._reports.led() & topology.raft_groups.keys(),
            ),
            self._config.slot_rules(),
        )

    def _note(self, raft_group: int, kind: str, reason: str) -> None:
        self._moves_total.add(1, {"kind": kind})
        self._logger.info("placement", raft_group=raft_group, what=reason)
        self._reasons.setdefault(raft_group, deque(maxlen=_KEPT_REASONS)).append(reason)

    def _moves_in_flight(self) -> float:
        if not self._machine.leading.is_set():
            return 0
        topology: Topology = self._machine.speculative.topology
        return sum(not raft_groups.is_settled(row) for row in topology.raft_groups.values())

    def _slot_moves_in_flight(self) -> float:
        if not self._machine.leading.is_set():
            return 0
        moves = self._machine.speculative.topology.slot_moves
        return count_under_way(moves.values(), self._reports.led())
