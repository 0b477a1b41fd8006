"""Members of the metadata raft group: maintained by its leader, one joint change at a time.

The goal is one voter per configured address: the replica that answers there. A nameserver with an
emptied folder returns with a new replica id at its old address (rule 8): it joins as a learner, and
replaces the old voter once it has caught up. Emptied again before that, it leaves a learner behind,
which goes: its address is another one's. A member whose address is in no configuration any more is
removed once it is DOWN. `next_membership` chooses; `MemberKeeper` carries out the choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_multiraft.base import MembershipRefused, NotLeader, ReadOnly
from strata_nameserver.membership.peers import PeerDirectory
from strata_nameserver.state.machine import MetadataMachine
from strata_raft import Configuration
from strata_runtime.logs import get_logger


@dataclass(frozen=True, slots=True)
class MembershipStep:
    """A configuration to go to, and why."""

    voters: frozenset[int]
    learners: frozenset[int]
    reason: str


def next_membership(
    configuration: Configuration,
    configured: Collection[str],
    answering: Mapping[str, int],
    endpoints: Mapping[int, str],
    down: frozenset[int],
    caught_up: Callable[[int], bool],
) -> MembershipStep | None:
    """Return the next change of the configuration; None: it is as wanted, or it must wait.

    Args:
        configuration: in force.
        configured: addresses of all nameservers; those that do not answer are among them.
        answering: configured addresses -> replica id that answers there now.
        endpoints: replica id -> address, of all that ever registered or answered.
        down: replica ids whose nodes are DOWN.
        caught_up: whether a replica has everything committed.
    """
    if configuration.outgoing:
        return None
    voters, learners = configuration.voters, configuration.learners
    for endpoint, replica_id in sorted(answering.items()):
        if replica_id in voters:
            continue
        if replica_id not in learners:
            return MembershipStep(
                voters, learners | {replica_id}, f"{replica_id} answers at {endpoint}"
            )
        if caught_up(replica_id):
            replaced = {voter for voter in voters if endpoints.get(voter) == endpoint}
            return MembershipStep(
                (voters - replaced) | {replica_id},
                learners - {replica_id},
                f"{replica_id} at {endpoint} has caught up",
            )
    for replica_id in sorted(voters | learners):
        if replica_id in answering.values():
            continue
        endpoint = endpoints.get(replica_id, "")
        if replica_id in learners and endpoint in answering:
            return MembershipStep(
                voters,
                learners - {replica_id},
                f"{answering[endpoint]} answers at {endpoint} instead of {replica_id}",
            )
        # At an address of a voter another one may answer that has not caught up yet.
        if endpoint in configured and answering.get(endpoint) not in voters:
            continue
        if replica_id in down and voters - {replica_id}:
            return MembershipStep(
                voters - {replica_id}, learners - {replica_id}, f"{replica_id} was taken out"
            )
    return None


class ReplicaMember(Protocol):
    """The part of `strata_multiraft.Replica` that is needed."""

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""

    def is_ready_leader(self) -> bool:
        """Whether it leads and may decide."""

    def caught_up(self, replica_id: int) -> bool:
        """Whether a replica has everything committed."""

    async def change_membership(
        self, voters: frozenset[int], learners: frozenset[int] = frozenset()
    ) -> None:
        """Go to another configuration."""


class MemberKeeper:
    """Brings the configuration to what is wanted while this nameserver leads.

    Args:
        replica: of the metadata raft group.
        machine: rows and leadership.
        directory: who answers where.
        forget_node: removes the row of a nameserver that was replaced.
        interval_s: how often it looks.
    """

    def __init__(
        self,
        replica: ReplicaMember,
        machine: MetadataMachine,
        directory: PeerDirectory,
        *,
        forget_node: Callable[[str], Awaitable[object]],
        interval_s: float,
    ) -> None:
        self._replica = replica
        self._machine = machine
        self._directory = directory
        self._forget_node = forget_node
        self._interval_s = interval_s
        self._logger = get_logger("nameserver")

    async def run(self) -> None:
        """Keep the members for as long as this nameserver leads, and again when it leads again."""
        while True:
            await self._machine.leading.wait()
            try:
                await self.step()
            except (MembershipRefused, NotLeader, ReadOnly, MetaRefused) as error:
                self._logger.info("membership step refused", reason=str(error))
            await asyncio.sleep(self._interval_s)

    async def step(self) -> None:
        """Make one change, if one is due.

        Raises:
            MembershipRefused, NotLeader, ReadOnly, MetaRefused: it was not made.
        """
        rows = self._machine.speculative.topology.nodes_of(meta_pb2.NODE_KIND_NAMESERVER)
        step = next_membership(
            self._replica.configuration,
            self._directory.endpoints,
            self._directory.members(),
            # One that was emptied at once has answered, but has no row.
            self._directory.addresses()
            | {row.metadata_replica_id: row.endpoints[0] for row in rows if row.endpoints},
            frozenset(
                row.metadata_replica_id for row in rows if row.state == meta_pb2.NODE_STATE_DOWN
            ),
            self._replica.caught_up,
        )
        if step is not None:
            self._logger.info(
                "metadata raft group changes",
                voters=sorted(step.voters),
                learners=sorted(step.learners),
                reason=step.reason,
            )
            await self._replica.change_membership(step.voters, step.learners)
            return
        members = self._replica.configuration.replicas()
        for row in rows:
            if row.state == meta_pb2.NODE_STATE_DOWN and row.metadata_replica_id not in members:
                await self._forget_node(row.node_id)
