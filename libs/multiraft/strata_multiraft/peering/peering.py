"""Everything between the nodes of one tier, composed: transport, liveness, service, snapshots.

    peering = Peering(identity, directory=..., ...)
    multiraft = MultiRaft(..., peers=peering.links)
    peering.attach(multiraft)
    server.register(RAFT_SERVICE, peering.servicer)

Start it after the driver, stop it before.
"""

from __future__ import annotations

import asyncio
import random as system_random
from collections.abc import Callable
from typing import Protocol

from strata_angelia.factory import open_channel
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import Channel
from strata_multiraft.driver.links import PeerLinks
from strata_multiraft.driver.node import MultiRaft
from strata_multiraft.peering.angelia_snapshots import AngeliaSnapshotFetcher
from strata_multiraft.peering.angelia_transport import AngeliaTransport, PeerIdentity
from strata_multiraft.peering.bounded_clock import BoundedClock
from strata_multiraft.peering.peering_options import PeeringOptions
from strata_multiraft.peering.raft_groups import DrivenRaftGroups
from strata_multiraft.peering.raft_servicer import RaftServicer
from strata_multiraft.peering.store_liveness import StoreLiveness
from strata_runtime.backoff import Random
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks

# Twice as many as are kept for a comparison: some get lost.
_HEARTBEATS_COMPARED = 16


class PeerPlaces(Protocol):
    """Knows where nodes are."""

    def endpoint_of(self, node_id: str, /) -> str | None:
        """Return where a node's RaftService is reached; None: not known."""

    def node_of(self, replica_id: int, /) -> str | None:
        """Return the node that hosts a replica; None: not known."""


class Peering:
    """One node's side of the traffic between nodes.

    Args:
        identity: node id and boot id.
        directory: asked anew for every frame.
        clock: time.
        metrics: where limits and states show.
        on_fatal: told when a task failed by a mistake in here.
        options: times and limits.
        random: spreads the pauses before reconnects.
        connect: makes a channel to an endpoint; None: by TCP, in protobuf.

    Attributes:
        links: the driver's way to the other nodes.
        group_clock: this node's clock within bounds of the others', for stamps of leaders.
        machine_of: machine of a node, which is one voice among the clocks; each node by itself
            unless it is set before `attach`.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        *,
        directory: PeerPlaces,
        clock: Clock,
        metrics: Metrics,
        on_fatal: OnFatal,
        options: PeeringOptions | None = None,
        random: Random = system_random.random,
        connect: Callable[[str], Channel] | None = None,
    ) -> None:
        self.options = options or PeeringOptions()
        angelia = AngeliaOptions(
            connect_timeout_s=self.options.transport.connect_timeout_ms / 1000,
            reconnect_pause_s=self.options.transport.reconnect_first_ms / 1000,
        )

        def connect_by_name(endpoint: str) -> Channel:
            return open_channel(endpoint, "tcp", "protobuf", options=angelia)

        connect = connect or connect_by_name
        self.transport = AngeliaTransport(
            identity,
            directory.endpoint_of,
            connect,
            clock=clock,
            random=random,
            options=self.options.transport,
            metrics=metrics,
            on_fatal=on_fatal,
        )
        self.fetcher = AngeliaSnapshotFetcher(directory.endpoint_of, connect)
        self.servicer = RaftServicer(identity.node_id)
        self._identity = identity
        self._node_of = directory.node_of
        self.machine_of: Callable[[str], str] = lambda node_id: node_id
        self.links = PeerLinks(self.transport, directory.node_of, self.fetcher)
        self._clock = clock
        self._metrics = metrics
        self._tasks = Tasks("peering", on_fatal, max_tasks=64)
        self._liveness: StoreLiveness | None = None
        liveness = self.options.liveness
        self.group_clock = BoundedClock(
            clock,
            max_skew_ms=liveness.max_clock_skew_ms,
            notice_s=_HEARTBEATS_COMPARED * liveness.heartbeat_interval_ms / 1000,
        )

    def attach(self, multiraft: MultiRaft) -> None:
        """Serve this driver: frames reach it, its raft groups may quiesce.

        Args:
            multiraft: the driver, made with this object's `transport` and `fetcher`.
        """
        self._liveness = multiraft.liveness = StoreLiveness(
            self._identity,
            DrivenRaftGroups(multiraft, self._tasks),
            self.transport,
            node_of=self._node_of,
            clock=self._clock,
            options=self.options.liveness,
            metrics=self._metrics,
        )
        self._liveness.on_compared = self.group_clock.compared
        self._liveness.machine_of = self.machine_of
        self.transport.on_lost = multiraft.unreachable
        self.servicer.attach(multiraft, self._liveness)

    async def start(self) -> None:
        """Begin to send heartbeats."""
        self._tasks.spawn("beat", self._keep_heartbeats(self._attached()))

    async def stop(self) -> None:
        """Fall silent and close all connections."""
        self.servicer.detach()
        await self._tasks.stop()
        await self.transport.stop()
        if self._liveness is not None:
            self._liveness.close()

    def heard_nodes(self) -> tuple[list[str], list[str]]:
        """Return the peers that have this node's support, and those that have not."""
        return self._attached().heard_nodes()

    def take_answer_latencies_ms(self) -> dict[str, float]:
        """Return by peer the median time of its answers since the last call, if there were any."""
        return self.transport.take_answer_latencies_ms()

    def clock_is_off(self) -> bool:
        """Whether this node's clock is too far from the others': it should not lead (rule 4)."""
        return not self._attached().may_campaign()

    def clock_skew_ms(self) -> int:
        """Return this node's clock minus the median of all nodes' (rule 4)."""
        return self._attached().clock_skew_ms()

    def _attached(self) -> StoreLiveness:
        assert self._liveness is not None, "attach comes first"
        return self._liveness

    async def _keep_heartbeats(self, liveness: StoreLiveness) -> None:
        while True:
            due_s = liveness.on_time()
            await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
