"""Placement as the metadata leader runs it: loads, outlook, plans and their executor.

The pure modules of this folder choose; this module gathers their facts and proposes their
decisions. Everything but the rows is soft state that a new leader measures again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts.change import MakeChange
from strata_nameserver.drafts.reports import Reports
from strata_nameserver.plans import plans
from strata_nameserver.plans.executor import ExecutorFacts, advance, note_refusal
from strata_nameserver.plans.judging import Sight, StepWatch
from strata_nameserver.plans.new_queues import NOTHING_TO_AVOID, Avoidance
from strata_nameserver.policies.loads import NodeLoads, busy_third, imbalance
from strata_nameserver.policies.model import Outlook, outlook
from strata_nameserver.policies.slowness import SlowNodes
from strata_nameserver.state.machine import MetadataMachine
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_state.metadata_keys import PLACEMENT_MODEL_KEY

_LOST = (meta_pb2.META_OUTCOME_NOT_LEADER, meta_pb2.META_OUTCOME_UNAVAILABLE)


class Placement:
    """See the module docstring.

    Args:
        machine: rows.
        change: proposes a change.
        reports: who leads.
        slow_nodes: who appends slowly.
        config: limits and times.
        clock: monotonic and wall time.
        metrics: plans, loads.

    Attributes:
        loads: what storage nodes bear.
    """

    def __init__(
        self,
        machine: MetadataMachine,
        change: MakeChange,
        reports: Reports,
        *,
        slow_nodes: SlowNodes,
        config: NameserverConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.loads = NodeLoads(config.load_window_ms / 1_000, clock)
        self._watch = StepWatch()
        self._machine = machine
        self._change = change
        self._reports = reports
        self._slow_nodes = slow_nodes
        self._config = config
        self._clock = clock
        self._logger = get_logger("nameserver")
        self._steps_total = metrics.counter("strata_metadata_plan_steps_total")
        metrics.gauge("strata_metadata_busiest_node_ratio", self._imbalance)

    def reset(self) -> None:
        """Forget all soft state: this nameserver has come to lead."""
        self.loads.reset()
        self._watch.reset()

    async def step(self) -> None:
        """Take the plan that runs, if one does, a state further.

        Raises:
            MetaRefused: leadership was lost, or there is no room for the change.
        """
        known = plans.plans_in(self._machine.speculative)
        running = [plan for plan in known if plan.state == meta_pb2.PLAN_STATE_RUNNING]
        if not running:
            return
        plan, config = running[0], self._config
        plan_id = plan.plan_id
        facts = ExecutorFacts(self._sight(), self._watch.beginning_of(plan))
        try:
            happened = await self._change(lambda draft: advance(draft, plan_id, facts, config))
        except MetaRefused as error:
            if error.outcome in _LOST:
                raise
            refused = error
            happened = await self._change(
                lambda draft: note_refusal(draft, plan_id, refused, config)
            )
        now = next((row for row in self.plans() if row.plan_id == plan_id), plan)
        self._watch.looked(plan, now, facts.now)
        if happened:
            self._steps_total.add(1)
            self._logger.info("plan", plan=plan_id, what=happened)

    async def propose(self, plan: meta_pb2.PlacementPlan) -> meta_pb2.PlacementPlan:
        """Keep a plan and return its row.

        Raises:
            MetaRefused: see `plans.propose`; so for every method here.
        """
        return await self._change(lambda draft: plans.propose(draft, plan, self._config))

    async def apply(self, plan_id: int, *, stop: bool) -> meta_pb2.PlacementPlan:
        """Let a plan run, or end it, and return its row."""
        if stop:
            return await self._change(lambda draft: plans.stop(draft, plan_id))
        return await self._change(lambda draft: plans.apply(draft, plan_id, self._config))

    async def set_model(self, model: meta_pb2.PlacementModel) -> meta_pb2.PlacementModel:
        """Take a model into use and return its row."""
        return await self._change(lambda draft: plans.set_model(draft, model))

    def plans(self) -> list[meta_pb2.PlacementPlan]:
        """Return the plans that are kept, newest first, as they are applied."""
        return plans.plans_in(self._machine)

    def show(self) -> meta_pb2.GetPlacementResponse:
        """Return plans, loads, the model and the rule in force."""
        view, slow = self.outlook(), self._slow_nodes.judge()
        measured = self._measured()
        busy = busy_third(view.loads, self._config.busy_node_floor_bytes_per_s)
        response = meta_pb2.GetPlacementResponse(plans=self.plans(), rule=view.rule)
        for node_id, bytes_per_s in sorted(measured.items()):
            free, total = self.loads.disk_bytes(node_id)
            response.loads.add(
                node_id=node_id,
                bytes_per_s=bytes_per_s,
                expected_bytes_per_s=view.expected.get(node_id, 0.0),
                is_busy=node_id in busy,
                is_slow=node_id in slow,
                slow_reason=slow.get(node_id, ""),
                disk_free_bytes=free,
                disk_total_bytes=total,
            )
        model = self._model()
        if model is not None:
            response.model.CopyFrom(model)
        return response

    def outlook(self) -> Outlook:
        """Return what counts as the load of storage nodes now, and why."""
        raft_groups = self._machine.speculative.topology.raft_groups
        return outlook(
            self._measured(),
            self._model(),
            raft_groups.keys(),
            self._reports.leader_of,
            self._clock.wall_ms(),
            self._config.max_model_error,
        )

    def avoidance(self) -> Avoidance:
        """Return which raft groups new queues should avoid, and where they should go instead."""
        if not self._config.avoid_busy_nodes:
            return NOTHING_TO_AVOID
        loads = self.outlook().loads
        busy = busy_third(loads, self._config.busy_node_floor_bytes_per_s)
        if not busy:
            return NOTHING_TO_AVOID
        unfit = {*busy, *self._slow_nodes.judge(), *self._draining()}
        leaders = self._leaders()
        calm = [number for number, node in leaders.items() if node and node not in unfit]
        calm.sort(key=lambda number: (loads.get(leaders[number], 0.0), number))
        return Avoidance(
            frozenset(number for number, node in leaders.items() if node in busy), calm
        )

    def explain(self) -> Sequence[str]:
        """Return by which loads new queues are placed, and which nodes they avoid."""
        view = self.outlook()
        busy = sorted(busy_third(view.loads, self._config.busy_node_floor_bytes_per_s))
        names = ", ".join(busy) if busy and self._config.avoid_busy_nodes else "no node"
        return (f"new queues avoid {names}; {view.rule}",)

    def _sight(self) -> Sight:
        topology = self._machine.speculative.topology
        storage = topology.nodes_of(meta_pb2.NODE_KIND_STORAGE)
        disks = {node.node_id: self.loads.disk_bytes(node.node_id) for node in storage}
        return Sight(
            self._measured(),
            self._leaders(),
            {node.node_id: node.state for node in storage},
            {node_id: total - free for node_id, (free, total) in disks.items()},
        )

    def _imbalance(self) -> float:
        if not self._machine.leading.is_set():
            return 0.0
        return imbalance(self._measured(), self._config.busy_node_floor_bytes_per_s)

    def _measured(self) -> dict[str, float]:
        topology = self._machine.speculative.topology
        storage = topology.nodes_of(meta_pb2.NODE_KIND_STORAGE)
        return self.loads.of(node.node_id for node in storage)

    def _draining(self) -> set[str]:
        nodes = self._machine.speculative.topology.nodes
        return {node_id for node_id, node in nodes.items() if node.draining}

    def _leaders(self) -> Mapping[int, str]:
        raft_groups = self._machine.speculative.topology.raft_groups
        return {number: self._reports.leader_of(number) for number in sorted(raft_groups)}

    def _model(self) -> meta_pb2.PlacementModel | None:
        value = self._machine.speculative.get(PLACEMENT_MODEL_KEY)
        return meta_pb2.PlacementModel.FromString(value) if value is not None else None
