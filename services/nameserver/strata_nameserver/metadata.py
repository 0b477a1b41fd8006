"""The metadata as a service: decide, propose, wait until applied, answer.

Every change is one synchronous decision on the speculative state followed by one proposal, so
changes queue up in the raft group and many share one sync. An answer, refusals included, tells
only what is applied: a refusal that was decided on changes in flight waits for them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from strata.meta.v1 import meta_pb2
from strata_nameserver import consumer_groups, nodes, tombstones, topics
from strata_nameserver.config import NameserverConfig
from strata_nameserver.draft import Draft
from strata_nameserver.errors import DRIVER_ERRORS, MetaError, refusal
from strata_nameserver.machine import MetadataMachine
from strata_nameserver.membership import Membership
from strata_nameserver.watch import WatchHub
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

Result = TypeVar("Result")


class MetadataReplica(Protocol):
    """What is needed of `strata_multiraft.node.Replica`."""

    def is_ready_leader(self) -> bool:
        """Whether it leads and the no-op of its term is applied."""

    def propose(self, payload: tuple[bytes, ...]) -> asyncio.Future[int]:
        """Propose an entry; the future gives its index once committed."""

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
    """

    def __init__(
        self,
        replica: MetadataReplica,
        machine: MetadataMachine,
        hub: WatchHub,
        config: NameserverConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._replica = replica
        self._machine = machine
        self._hub = hub
        self._config = config
        self._clock = clock
        self._last_proposal: asyncio.Future[int] | None = None
        self._refused_total = metrics.counter("strata_metadata_refused_total")
        self._membership = Membership(config, clock, metrics)

    async def create_topic(self, topic: meta_pb2.Topic) -> meta_pb2.Topic:
        """Make a topic and return its row.

        Raises:
            MetaError: the reason for a refusal; so for every method here.
        """
        return await self._change(lambda draft: topics.create_topic(draft, topic, self._config))

    async def update_topic(self, topic: meta_pb2.Topic, mask: Sequence[str]) -> meta_pb2.Topic:
        """Change the fields of a topic that `mask` names and return its row."""
        return await self._change(
            lambda draft: topics.update_topic(draft, topic, mask, self._config)
        )

    async def delete_topic(self, namespace: str, name: str) -> meta_pb2.Topic:
        """Delete a topic and return the row it had."""
        return await self._change(
            lambda draft: topics.delete_topic(draft, namespace, name, self._config)
        )

    async def create_consumer_group(
        self, consumer_group: meta_pb2.ConsumerGroup
    ) -> meta_pb2.ConsumerGroup:
        """Make a consumer group with its dead-letter topic and return its row."""
        return await self._change(
            lambda draft: consumer_groups.create_consumer_group(draft, consumer_group, self._config)
        )

    async def update_consumer_group(
        self, consumer_group: meta_pb2.ConsumerGroup, mask: Sequence[str]
    ) -> meta_pb2.ConsumerGroup:
        """Change the fields of a consumer group that `mask` names and return its row."""
        return await self._change(
            lambda draft: consumer_groups.update_consumer_group(draft, consumer_group, mask)
        )

    async def delete_consumer_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup:
        """Delete a consumer group with its dead-letter topic and return the row it had."""
        return await self._change(
            lambda draft: consumer_groups.delete_consumer_group(
                draft, namespace, name, self._config
            )
        )

    async def confirm_dropped(
        self, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int
    ) -> None:
        """Note that every raft group has dropped the data behind a tombstone."""
        await self._change(lambda draft: tombstones.confirm_dropped(draft, kind, dropped_id))

    async def register_node(self, node: meta_pb2.Node) -> list[meta_pb2.HostedReplica]:
        """Take a node in and return the replicas it hosts."""
        await self._change(lambda draft: nodes.register_node(draft, node, self._config))
        self._membership.heard(node.node_id, node.kind, node.boot_id)
        return nodes.hosted_replicas(self._machine.speculative.placement, node.node_id)

    def heartbeat(self, node_id: str, boot_id: int) -> None:
        """Note that a node is alive; kept in memory only.

        Raises:
            MetaError: NOT_FOUND: this boot of the node has not registered here.
        """
        self._membership.heartbeat(node_id, boot_id)

    async def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return the revision and all rows, as of a moment after the call (rule 3)."""
        await self._barrier()
        return self._hub.revision, list(self._hub.snapshot())

    def watch(self, from_revision: int) -> AsyncIterator[meta_pb2.WatchResponse]:
        """Return the stream of changes after `from_revision` (see `WatchHub.watch`)."""
        return self._hub.watch(from_revision)

    def nodes_alive(self) -> Mapping[str, bool]:
        """Return for every node heard of since the start whether it still is alive."""
        return self._membership.alive()

    async def _change(self, decide: Callable[[Draft], Result]) -> Result:
        try:
            return await self._decide_and_propose(decide)
        except MetaError as error:
            name = meta_pb2.MetaOutcome.Name(error.outcome)
            self._refused_total.add(1, {"outcome": name.removeprefix("META_OUTCOME_").lower()})
            raise

    async def _decide_and_propose(self, decide: Callable[[Draft], Result]) -> Result:
        if not self._replica.is_ready_leader():
            raise MetaError(
                meta_pb2.META_OUTCOME_NOT_LEADER, "this nameserver is not the ready leader"
            )
        speculative = self._machine.speculative
        draft = Draft(speculative, self._clock.wall_ms())
        try:
            result = decide(draft)
        except MetaError:
            await self._settle()
            raise
        if not draft.changes:
            await self._settle()
            return result
        try:
            self._last_proposal = self._replica.propose((draft.encode(),))
            speculative.stage(draft)
            await self._until_applied(self._last_proposal)
        except DRIVER_ERRORS as error:
            raise refusal(error) from error
        return result

    async def _settle(self) -> None:
        """Wait until everything a decision was based on is applied.

        What failed meanwhile has taken the speculative state with it; the caller asks again.
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
