"""Presence of a node at the nameservers: registration, then several heartbeats a second.

Every nameserver leader knows the registered nodes from its rows, so a registered node that gets
NOT_FOUND was removed. A broker registers again: nameservers forget a broker that was silent for
long. A removed storage node stays out until its process is restarted: an operator drained it to
switch it off, and it must not get replicas again.

A process whose row another one of its node has is asked to register again: the other one may be an
earlier one, whose request came late. When it is refused, since the other one started later and is
heard, two processes share a node id. This one says so and asks on, in case the other one ends.

The first nameserver that accepts a node gives it its cluster. The node then refuses nameservers of
another cluster but keeps asking them, since addresses change hands (rule 32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId, WrongCluster, own
from strata_angelia.ports import AngeliaError
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_metadata.metrics import METRICS
from strata_metadata.options import PresenceOptions
from strata_metadata.rows import ROW_FORMAT
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.version import VERSION

_TELL_EVERY_S = 60.0

MakeHeartbeat = Callable[[bool], meta_pb2.HeartbeatRequest]
"""Gives a heartbeat; its argument: whether it must be complete. Called once per heartbeat sent."""


class NodePresence:
    """Keeps one node registered and heard of, for the process's life.

    Args:
        client: to the nameservers.
        node: as it registers; `node_id`, `kind`, `endpoints`, `boot_id`, `rack` and, of a
            broker, `advertised_endpoint`.
        options: times.
        metrics: heartbeats.
        make_heartbeat: what a heartbeat says; None: only that the node is there.
        cluster: that the process belongs to; None: nobody compares.
        clock: time between two lines about the same refusal.

    Attributes:
        registered: set once the node was registered for the first time.
        response: what the last registration answered.
    """

    def __init__(
        self,
        client: MetadataClient,
        node: meta_pb2.Node,
        options: PresenceOptions,
        *,
        metrics: Metrics,
        make_heartbeat: MakeHeartbeat | None = None,
        cluster: ClusterId | None = None,
        clock: Clock | None = None,
    ) -> None:
        metrics.declare(METRICS)
        self._client = client
        self._node = meta_pb2.Node()
        self._node.CopyFrom(node)
        self._node.row_format = ROW_FORMAT
        self._node.version = VERSION
        self._options = options
        self._cluster = own(cluster)
        self._clock = clock or SystemClock()
        self._node.started_at_ms = self._clock.wall_ms()
        # The refusal that was written about last, and when.
        self._told: tuple[str, float] = ("", 0.0)
        self._make_heartbeat = make_heartbeat or self._plain
        self._heartbeats_total = metrics.counter("strata_metadata_heartbeats_total")
        self._want_full = True
        self._logger = get_logger("presence")
        self.registered = asyncio.Event()
        self.response = meta_pb2.RegisterNodeResponse()

    async def run(self) -> None:
        """Register and send heartbeats until cancelled; returns when a storage node is removed."""
        while True:
            if not await self._register():
                await asyncio.sleep(self._options.retry_ms / 1_000)
                continue
            heard = await self._beat_until_unknown()
            if self._node.kind == meta_pb2.NODE_KIND_STORAGE:
                self._logger.warning("removed; start it again to join", node=self._node.node_id)
                return
            if not heard:
                # Each round is a write for the nameservers: none follows another at once.
                await asyncio.sleep(self._options.retry_ms / 1_000)

    async def _register(self) -> bool:
        try:
            response = await self._client.call(
                "RegisterNode",
                meta_pb2.RegisterNodeRequest(node=self._node, cluster_id=self._cluster.value),
                meta_pb2.RegisterNodeResponse,
                timeout_s=self._options.register_timeout_ms / 1_000,
            )
            self._cluster.learn(response.cluster_id)
        except (MetaRefused, AngeliaError, WrongCluster) as error:
            self._tell(str(error))
            return False
        self.response = response
        self._want_full = True
        self.registered.set()
        return True

    def _tell(self, reason: str) -> None:
        """Write down why the node is not registered, once in a while."""
        now_s = self._clock.monotonic_s()
        told, at_s = self._told
        if reason != told or now_s - at_s >= _TELL_EVERY_S:
            self._told = reason, now_s
            self._logger.warning("not registered", node=self._node.node_id, reason=reason)

    async def _beat_until_unknown(self) -> int:
        """Send heartbeats until one is of an unknown node; return how many came before it."""
        heard = 0
        while await self._beat():
            heard += 1
            await asyncio.sleep(self._options.interval_ms / 1_000)
        return heard

    async def _beat(self) -> bool:
        """Send one heartbeat; False: the node must register."""
        try:
            request = self._make_heartbeat(self._want_full)
            request.cluster_id = self._cluster.value
            request.row_format = ROW_FORMAT
            response = await self._client.call(
                "Heartbeat",
                request,
                meta_pb2.HeartbeatResponse,
                timeout_s=self._options.timeout_ms / 1_000,
            )
        except AngeliaError as error:
            # The deltas of a heartbeat that may be lost must come again.
            self._want_full = True
            self._heartbeats_total.add(1, {"result": error.code})
            return True
        except MetaRefused as refused:
            self._want_full = True
            self._heartbeats_total.add(1, {"result": "refused"})
            return refused.outcome != meta_pb2.META_OUTCOME_NOT_FOUND
        self._want_full = response.want_full
        self._heartbeats_total.add(1, {"result": "ok"})
        if response.want_registration:
            await self._register()
        return True

    def _plain(self, full: bool) -> meta_pb2.HeartbeatRequest:
        return meta_pb2.HeartbeatRequest(
            node_id=self._node.node_id, boot_id=self._node.boot_id, full=full
        )
