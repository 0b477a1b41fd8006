"""Everything between the nodes of one tier, composed: transport, liveness, service, snapshots.

    peering = Peering(identity, endpoint_of=..., node_of=..., ...)
    multiraft = MultiRaft(..., transport=peering.transport, fetcher=peering.fetcher, node_of=...)
    peering.attach(multiraft)
    server.register(RAFT_SERVICE, peering.servicer)

Start it after the driver, stop it before.
"""

from __future__ import annotations

import asyncio
import random as system_random
from collections.abc import Callable

from strata_angelia.factory import open_channel
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import Channel
from strata_multiraft.driver.node import MultiRaft
from strata_multiraft.peering.angelia_snapshots import AngeliaSnapshotFetcher
from strata_multiraft.peering.angelia_transport import AngeliaTransport, EndpointOf, PeerIdentity
from strata_multiraft.peering.bounded_clock import BoundedClock
from strata_multiraft.peering.peering_options import PeeringOptions
from strata_multiraft.peering.raft_groups import DrivenRaftGroups
from strata_multiraft.peering.raft_servicer import RaftServicer
from strata_multiraft.peering.store_liveness import NodeOf, StoreLiveness
from strata_runtime.backoff import Random
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks

# Twice as many as are kept for a comparison: some get lost.
_BEATS_COMPARED = 16


class Peering:
    """One node's side of the traffic between nodes.

    Args:
        identity: node id and boot id.
        endpoint_of: where a node's RaftService is reached; asked anew for every frame.
        node_of: the node of a replica id; asked anew each time.
        clock: time.
        metrics: where limits and states show.
        on_fatal: told when a task failed by a mistake in here.
        options: times and limits.
        transport: of Angelia: "tcp" or "http2".
        codec: of Angelia: "protobuf", "json" or "avro".
        random: spreads the pauses before reconnects.
        connect: makes a channel to an endpoint; None: by `transport` and `codec`.

    Attributes:
        group_clock: this node's clock within bounds of the others', for stamps of leaders.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        *,
        endpoint_of: EndpointOf,
        node_of: NodeOf,
        clock: Clock,
        metrics: Metrics,
        on_fatal: OnFatal,
        options: PeeringOptions | None = None,
        transport: str = "tcp",
        codec: str = "protobuf",
        random: Random = system_random.random,
        connect: Callable[[str], Channel] | None = None,
    ) -> None:
        self.options = options or PeeringOptions()
        angelia = AngeliaOptions(
            connect_timeout_s=self.options.transport.connect_timeout_ms / 1000,
            reconnect_pause_s=self.options.transport.reconnect_first_ms / 1000,
        )

        def connect_by_name(endpoint: str) -> Channel:
            return open_channel(endpoint, transport, codec, options=angelia)

        connect = connect or connect_by_name
        self.transport = AngeliaTransport(
            identity,
            endpoint_of,
            connect,
            clock,
            random,
            self.options.transport,
            metrics,
            on_fatal=on_fatal,
        )
        self.fetcher = AngeliaSnapshotFetcher(endpoint_of, connect)
        self.servicer = RaftServicer(identity.node_id)
        self._identity = identity
        self._node_of = node_of
        self._clock = clock
        self._metrics = metrics
        self._tasks = Tasks("peering", on_fatal, max_tasks=64)
        self._liveness: StoreLiveness | None = None
        liveness = self.options.liveness
        self.group_clock = BoundedClock(
            clock,
            max_skew_ms=liveness.max_clock_skew_ms,
            notice_s=_BEATS_COMPARED * liveness.beat_interval_ms / 1000,
        )

    def attach(self, multiraft: MultiRaft) -> None:
        """Serve this driver: frames reach it, its raft groups may rest.

        Args:
            multiraft: the driver, made with this object's `transport` and `fetcher`.
        """
        self._liveness = multiraft.liveness = StoreLiveness(
            self._identity,
            DrivenRaftGroups(multiraft, self._tasks),
            self.transport,
            self._node_of,
            self._clock,
            self.options.liveness,
            self._metrics,
        )
        self._liveness.on_compared = self.group_clock.compared
        self.transport.on_lost = multiraft.unreachable
        self.servicer.attach(multiraft, self._liveness)

    async def start(self) -> None:
        """Begin to send heartbeats."""
        self._tasks.spawn("beat", self._beat(self._attached()))

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

    async def _beat(self, liveness: StoreLiveness) -> None:
        while True:
            due_s = liveness.on_time()
            await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
