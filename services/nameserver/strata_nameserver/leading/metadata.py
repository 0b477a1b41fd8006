"""The metadata as a service: decide, propose, wait until applied, answer.

Every change is one synchronous decision on the speculative state followed by one proposal, so
changes queue up in the raft group and many share one sync. An answer, refusals included, tells
only what is applied: a refusal that was decided on changes in flight waits for them first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from secrets import token_bytes
from typing import Protocol, TypeVar

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.watch import WatchHub
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import DRIVER_ERRORS, refusal
from strata_nameserver.drafts import (
    consumer_groups,
    nodes,
    queue_moves,
    quotas,
    raft_groups,
    slot_moves,
    tombstones,
    topic_batches,
    topics,
)
from strata_nameserver.drafts.reports import Reports
from strata_nameserver.leading.access import Access, RandomBytes
from strata_nameserver.leading.calls import AnsweredBefore, current_call
from strata_nameserver.leading.controller import Controller, NodesSeen
from strata_nameserver.leading.explain import explain_queue
from strata_nameserver.plans.new_queues import Avoidance, steer
from strata_nameserver.plans.service import Placement
from strata_nameserver.policies.detector import FailureDetector
from strata_nameserver.policies.slowness import SlowNodes
from strata_nameserver.state.draft import Draft
from strata_nameserver.state.machine import MetadataMachine
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

Result = TypeVar("Result")


class MetadataReplica(Protocol):
    """The part of `strata_multiraft.Replica` that is needed."""

    def is_ready_leader(self) -> bool:
        """Whether it leads and the no-op of its term is applied."""

    def propose(self, payload: tuple[bytes, ...]) -> asyncio.Future[int]:
        """Propose an entry; the future gives its index once committed.

        Raises:
            ValueError: the entry is too large; nothing was proposed.
        """

    async def applied(self, index: int) -> None:
        """Wait until the entry at `index` is applied."""

    async def read_barrier(self) -> int:
        """Wait until what was committed at the call is applied (rule 3)."""


class Metadata:
    """Topics, consumer groups and nodes of one cluster.

    Args:
        replica: the local replica of the metadata raft group.
        machine: its state machine.
        hub: watch streams.
        config: limits and defaults.
        clock: stamps and silence of nodes.
        metrics: refusals.
        random_bytes: of which keys are made; nobody must be able to guess them.

    Attributes:
        access: users, policies and cluster keys.
        placement: plans and what nodes bear.
        reports: what storage nodes say.
        controller: what the leader does by itself.
    """

    def __init__(
        self,
        replica: MetadataReplica,
        machine: MetadataMachine,
        hub: WatchHub,
        *,
        config: NameserverConfig,
        clock: Clock,
        metrics: Metrics,
        random_bytes: RandomBytes = token_bytes,
    ) -> None:
        self._replica = replica
        self._machine = machine
        self._hub = hub
        self._config = config
        self._clock = clock
        self._last_proposal: asyncio.Future[int] | None = None
        self._refused_total = metrics.counter("strata_metadata_refused_total")
        self._detector = FailureDetector(config.detector_options(), clock)
        self._reports = self.reports = Reports()
        self._slow_nodes = SlowNodes(config.slowness_options(), clock)
        self.access = Access(self.change, config, random_bytes)
        self.placement = Placement(
            machine,
            self.change,
            self._reports,
            slow_nodes=self._slow_nodes,
            config=config,
            clock=clock,
            metrics=metrics,
        )
        self.controller = Controller(
            machine,
            self.change,
            NodesSeen(self._detector, self._reports, self._slow_nodes),
            placement=self.placement,
            config=config,
            clock=clock,
            metrics=metrics,
        )
        metrics.gauge("strata_metadata_nodes", self._nodes_by_state)

    async def create_topic(self, topic: meta_pb2.Topic) -> meta_pb2.Topic:
        """Make a topic and return its row.

        Raises:
            MetaRefused: the reason for a refusal; so for every method here.
        """
        avoidance = self.placement.avoidance()

        def create(draft: Draft) -> meta_pb2.Topic:
            row = topics.create_topic(draft, topic, self._config)
            self._steer(draft, row, avoidance)
            return row

        return await self.change(create)

    async def create_topics(
        self, wanted: Sequence[meta_pb2.Topic]
    ) -> tuple[topic_batches.Batch, int]:
        """Make topics by one change; return what became of them, and a revision with them.

        Topics that existed may be newer than what a broker knows: it waits for them likewise.
        """
        place = partial(self._steer, avoidance=self.placement.avoidance())

        def create(draft: Draft) -> tuple[topic_batches.Batch, int]:
            batch = topic_batches.create_topics(draft, wanted, self._config, place)
            return batch, draft.revision if batch.created else draft.revision - 1

        return await self.change(create)

    async def update_topic(self, topic: meta_pb2.Topic, mask: Sequence[str]) -> meta_pb2.Topic:
        """Change the fields of a topic that `mask` names and return its row."""
        avoidance = self.placement.avoidance()

        def update(draft: Draft) -> meta_pb2.Topic:
            before = topics.stored_topic(draft, topic.namespace, topic.name).queue_count
            row = topics.update_topic(draft, topic, mask, self._config)
            new = range(before, row.queue_count)
            steer(draft, row, new, avoidance, self._config.max_queue_overrides)
            return row

        return await self.change(update)

    async def delete_topic(self, namespace: str, name: str) -> meta_pb2.Topic:
        """Delete a topic and return the row it had."""
        return await self.change(
            lambda draft: topics.delete_topic(draft, namespace, name, self._config)
        )

    async def create_consumer_group(
        self, consumer_group: meta_pb2.ConsumerGroup
    ) -> meta_pb2.ConsumerGroup:
        """Make a consumer group with its dead-letter topic and return its row."""
        return await self.change(
            lambda draft: consumer_groups.create_consumer_group(draft, consumer_group, self._config)
        )

    async def update_consumer_group(
        self, consumer_group: meta_pb2.ConsumerGroup, mask: Sequence[str]
    ) -> meta_pb2.ConsumerGroup:
        """Change the fields of a consumer group that `mask` names and return its row."""
        return await self.change(
            lambda draft: consumer_groups.update_consumer_group(draft, consumer_group, mask)
        )

    async def delete_consumer_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup:
        """Delete a consumer group with its dead-letter topic and return the row it had."""
        return await self.change(
            lambda draft: consumer_groups.delete_consumer_group(
                draft, namespace, name, self._config
            )
        )

    async def confirm_dropped(
        self, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int
    ) -> None:
        """Note that every raft group has dropped the data behind a tombstone."""
        await self.change(lambda draft: tombstones.confirm_dropped(draft, kind, dropped_id))

    async def confirm_rehashed(self, request: meta_pb2.ConfirmRehashedRequest) -> meta_pb2.Topic:
        """Note that no message group depends on a topic's old queue count; return its row."""
        return await self.change(lambda draft: topics.confirm_rehashed(draft, request))

    async def register_node(self, node: meta_pb2.Node) -> list[meta_pb2.HostedReplica]:
        """Take a node in and return the replicas it hosts.

        A late request of a process that is gone does not replace one that is heard. Where that
        cannot be known it does, and the heartbeats of the other one bring its row back.
        """
        known = self._machine.speculative.topology.nodes.get(node.node_id)
        is_new = known is None or known.boot_id != node.boot_id
        is_heard = self._detector.is_heard(node.node_id)
        await self.change(
            lambda draft: nodes.register_node(draft, node, self._config, is_heard=is_heard)
        )
        self._detector.registered(node.node_id)
        if is_new:
            self._slow_nodes.forget(node.node_id)
        self.placement.loads.forget(node.node_id)
        return self._machine.speculative.topology.hosted_replicas(node.node_id)

    def kind_of(self, node_id: str) -> meta_pb2.NodeKind.ValueType | None:
        """Return the kind of a node; None: it is not registered."""
        node = self._machine.speculative.topology.nodes.get(node_id)
        return node.kind if node is not None else None

    def heartbeat(self, request: meta_pb2.HeartbeatRequest) -> bool:
        """Note that a node is alive; return whether its next heartbeat must be complete.

        One of a process whose row another one has is not noted: `should_register`.

        Raises:
            MetaRefused: NOT_LEADER; NOT_FOUND: the node has not registered.
        """
        self._check_leader()
        node = self._machine.speculative.topology.nodes.get(request.node_id)
        if node is None:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_NOT_FOUND, f"node {request.node_id} must register first"
            )
        if node.boot_id != request.boot_id:
            return True
        want_full = self._detector.heartbeat(request)
        if node.kind == meta_pb2.NODE_KIND_STORAGE:
            self._reports.take(request, self._clock.monotonic_s())
            self._slow_nodes.measured(request.node_id, request.load)
            if request.HasField("load"):
                self.placement.loads.measured(request.node_id, request.load)
        return want_full

    def should_register(self, heartbeat: meta_pb2.HeartbeatRequest) -> bool:
        """Whether a node should register again.

        Its row says less than the node, as an older leader has written it; or the row is that of
        another process, perhaps of an earlier one whose request came late; or the first raft groups
        can be made, which registrations do.
        """
        topology = self._machine.speculative.topology
        node = topology.nodes.get(heartbeat.node_id)
        if node is None:
            return False
        if node.row_format < heartbeat.row_format or node.boot_id != heartbeat.boot_id:
            return True
        is_storage = node.kind == meta_pb2.NODE_KIND_STORAGE
        return is_storage and raft_groups.lacks_first_raft_groups(topology, self._config)

    async def drain_node(self, node_id: str, *, draining: bool) -> meta_pb2.Node:
        """Take a node out of service, or back into it, and return its row."""
        return await self.change(
            lambda draft: nodes.drain_node(draft, node_id, self._config, draining=draining)
        )

    async def remove_node(self, node_id: str, *, force: bool, boot_id: int = 0) -> meta_pb2.Node:
        """Forget a node, or (with `boot_id`) a process that leaves; return the row it had."""
        node = await self.change(
            lambda draft: nodes.remove_node(draft, node_id, force=force, boot_id=boot_id)
        )
        self._detector.removed(node_id)
        self._reports.forget(node_id)
        self._slow_nodes.forget(node_id)
        self.placement.loads.removed(node_id)
        return node

    async def change_replicas(self, request: meta_pb2.ChangeReplicasRequest) -> meta_pb2.RaftGroup:
        """Change where the replicas of a raft group belong and return its row."""
        return await self.change(
            lambda draft: raft_groups.change_replicas(
                draft,
                request.raft_group,
                request.add_node_ids,
                request.remove_node_ids,
                learners=request.learners,
            )
        )

    async def prefer_leader(self, raft_group: int, node_id: str) -> meta_pb2.RaftGroup:
        """Name the node that should lead a raft group and return its row."""
        return await self.change(
            lambda draft: raft_groups.prefer_leader(draft, raft_group, node_id)
        )

    async def move_queue(self, request: meta_pb2.MoveQueueRequest) -> meta_pb2.QueueOverride:
        """Wish a queue into another raft group and return its row."""
        return await self.change(lambda draft: queue_moves.move_queue(draft, request, self._config))

    async def queue_moved(
        self, request: meta_pb2.ReportQueueMovedRequest
    ) -> meta_pb2.QueueOverride:
        """Write down that a queue's next epoch is open and return its row."""
        return await self.change(lambda draft: queue_moves.record_move(draft, request))

    async def queue_drained(
        self, request: meta_pb2.ReportQueueDrainedRequest
    ) -> meta_pb2.QueueOverride:
        """Forget a queue's epochs of which nothing is kept and return its row."""
        return await self.change(lambda draft: queue_moves.record_drained(draft, request))

    async def move_slots(self, request: meta_pb2.MoveSlotsRequest) -> slot_moves.Moving:
        """Begin to move a run of slots and return how far it is."""
        led = self._reports.led()
        return await self.change(
            lambda draft: slot_moves.move_slots(draft, request, led, self._config)
        )

    async def slots_revoked(self, request: meta_pb2.ReportSlotsRevokedRequest) -> None:
        """Write down that slots are their new raft group's."""
        await self.change(lambda draft: slot_moves.record_revoked(draft, request))

    async def slots_granted(self, request: meta_pb2.ReportSlotsGrantedRequest) -> None:
        """Write down that slots have arrived."""
        await self.change(lambda draft: slot_moves.record_granted(draft, request))

    async def set_quota(self, quota: meta_pb2.Quota, mask: Sequence[str]) -> meta_pb2.Quota:
        """Set the limits of a namespace or topic that `mask` names and return its row."""
        return await self.change(lambda draft: quotas.set_quota(draft, quota, mask, self._config))

    async def explain_queue(self, namespace: str, topic: str, queue: int) -> list[str]:
        """Return why a queue is where it is."""

        def explain(draft: Draft) -> list[str]:
            row = topics.stored_topic(draft, namespace, topic)
            lines = explain_queue(
                row,
                queue,
                queue_moves.stored_override(draft, row.topic_id, queue),
                draft.topology,
                self._reports.leader_of,
                self.controller.reasons,
            )
            return [*lines, *self.placement.explain()]

        return await self.change(explain)

    def show_placement(self) -> meta_pb2.GetPlacementResponse:
        """Return plans, loads of nodes, and the rule that places new queues; leader only."""
        self._check_leader()
        return self.placement.show()

    async def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return the revision and all rows.

        The leader's are as of a moment after the call (rule 3), a follower's may be older.
        """
        if self._replica.is_ready_leader():
            await self._barrier()
        return await self._hub.snapshot()

    def watch(
        self, from_revision: int, from_stamp: int = 0
    ) -> AsyncGenerator[meta_pb2.WatchResponse, None]:
        """Return the stream of changes after `from_revision` (see `WatchHub.watch`)."""
        return self._hub.watch(from_revision, from_stamp)

    async def change(self, decide: Callable[[Draft], Result]) -> Result:
        """Decide on the speculative state, propose what was decided, wait until it is applied."""
        try:
            return await self._decide_and_propose(decide)
        except MetaRefused as error:
            name = meta_pb2.MetaOutcome.Name(error.outcome)
            self._refused_total.add(1, {"outcome": name.removeprefix("META_OUTCOME_").lower()})
            raise

    async def _decide_and_propose(self, decide: Callable[[Draft], Result]) -> Result:
        self._check_leader()
        speculative = self._machine.speculative
        draft = Draft(speculative, self._clock.wall_ms())
        call = current_call()
        try:
            if call is not None:
                call.check_in(draft)
            result = decide(draft)
            if call is not None and draft.changes:
                call.remember_in(draft, result)
            proposal = self._propose(draft) if draft.changes else None
        except MetaRefused:
            await self._settle()
            raise
        except AnsweredBefore as known:
            await self._settle()
            if known.revision > self._machine.revision:
                # It was in flight, and is discarded.
                raise self._not_leader() from None
            raise
        except DRIVER_ERRORS as error:
            raise refusal(error) from error
        if proposal is None:
            await self._settle()
            return result
        self._last_proposal = proposal
        # Its caller may be gone when it fails; that is no mistake of anybody.
        proposal.add_done_callback(_retrieve)
        speculative.stage(draft)
        try:
            await self._until_applied(proposal)
        except DRIVER_ERRORS as error:
            raise refusal(error) from error
        return result

    def _propose(self, draft: Draft) -> asyncio.Future[int]:
        """Propose a change; one that no raft entry holds is refused like any other.

        Raises:
            MetaRefused: LIMIT_REACHED: it is too large.
            NotLeader, Overloaded, ReadOnly, LogFull: see `DRIVER_ERRORS`.
        """
        command = draft.encode()
        try:
            return self._replica.propose((command,))
        except ValueError as error:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_LIMIT_REACHED,
                f"the change is too large: it writes {len(draft.changes)} rows with {len(command)} "
                "bytes together, more than one entry of the metadata log may have",
            ) from error

    def _steer(self, draft: Draft, topic: meta_pb2.Topic, avoidance: Avoidance) -> None:
        """Keep the queues of a new topic off busy nodes."""
        queues = range(topic.queue_count)
        steer(draft, topic, queues, avoidance, self._config.max_queue_overrides)

    def _check_leader(self) -> None:
        if not self._replica.is_ready_leader():
            raise self._not_leader()

    @staticmethod
    def _not_leader() -> MetaRefused:
        return MetaRefused(
            meta_pb2.META_OUTCOME_NOT_LEADER, "this nameserver is not the ready leader"
        )

    async def _settle(self) -> None:
        """Wait until everything a decision was based on is applied.

        A proposal that failed meanwhile has discarded the speculative state; the caller asks again.
        """
        proposal = self._last_proposal
        if proposal is None or (proposal.done() and proposal.exception() is not None):
            return
        try:
            await self._until_applied(proposal)
        except DRIVER_ERRORS as error:
            raise refusal(error) from error

    async def _until_applied(self, proposal: asyncio.Future[int]) -> None:
        # Several callers may wait for one proposal: none may cancel it for the others.
        await self._replica.applied(await asyncio.shield(proposal))

    async def _barrier(self) -> None:
        try:
            await self._replica.read_barrier()
        except DRIVER_ERRORS as error:
            raise refusal(error) from error

    def _nodes_by_state(self) -> list[tuple[float, dict[str, str]]]:
        if not self._machine.leading.is_set():
            # Only the leader knows; followers hold rows and nothing else.
            return []
        counts = Counter(
            (node.kind, node.state) for node in self._machine.speculative.topology.nodes.values()
        )
        return [
            (
                count,
                {
                    "kind": meta_pb2.NodeKind.Name(kind).removeprefix("NODE_KIND_").lower(),
                    "state": meta_pb2.NodeState.Name(state).removeprefix("NODE_STATE_").lower(),
                },
            )
            for (kind, state), count in counts.items()
        ]


def _retrieve(proposal: asyncio.Future[int]) -> None:
    if not proposal.cancelled():
        proposal.exception()
