"""A broker among the nodes: it registers, tells that it lives, and takes itself off when it stops.

A broker that no nameserver registers still serves.
"""

from __future__ import annotations

import asyncio

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import AngeliaError
from strata_broker.base.config import BrokerConfig
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_metadata.presence import NodePresence
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout

_LEAVE_S = 5.0
"""Time to leave, at most: nameservers elect another leader in a second or two."""


class BrokerRegistration:
    """See the module docstring.

    Args:
        metadata: calls nameservers.
        cluster: that the process belongs to; None: it is not checked.
        config: times.
        tasks: own the heartbeats.
        clock: time.
        metrics: what is counted.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        cluster: ClusterId | None,
        config: BrokerConfig,
        *,
        tasks: Tasks,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._config = config
        self._tasks = tasks
        self._clock = clock
        self._metrics = metrics
        self._node_id, self._boot_id = "", 0
        self._presence: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._log = get_logger("broker")

    async def register(self, node: meta_pb2.Node) -> None:
        """Register; try again in the background while no nameserver answers."""
        self._node_id, self._boot_id = node.node_id, node.boot_id
        presence = NodePresence(
            self._metadata,
            node,
            self._config.presence(),
            metrics=self._metrics,
            cluster=self._cluster,
            clock=self._clock,
        )
        self._presence = self._tasks.spawn("presence", presence.run())
        try:
            async with Timeout(self._config.metadata.call_timeout_ms / 1000):
                await presence.registered.wait()
        except TimeoutError:
            self._log.warning("no nameserver registered the broker; it serves meanwhile")

    async def leave(self, grace_s: float) -> None:
        """Leave the routes of the other brokers before clients are let go.

        While no nameserver leads this goes on behind: a broker that is not taken off stays a node
        that is down, for as long as nameservers remember it.
        """
        presence, self._presence = self._presence, None
        if presence is None or not grace_s:
            return
        # A heartbeat after the removal would register the broker again. A registration that is on
        # its way is refused then, as the removal names the process.
        presence.cancel()
        await asyncio.wait((presence,))
        reason = await self._take_off(grace_s)
        if reason:
            self._leaving = self._tasks.spawn("leave", self._try_again(reason, grace_s))

    async def left(self) -> None:
        """Wait until the broker has left, or nobody tries any more."""
        if self._leaving is not None:
            await asyncio.wait((self._leaving,))

    async def _try_again(self, reason: str, grace_s: float) -> None:
        try:
            async with Timeout(min(grace_s, _LEAVE_S)):
                while reason:
                    await asyncio.sleep(self._config.presence().retry_ms / 1_000)
                    reason = await self._take_off(grace_s)
        except TimeoutError:
            # The nameservers notice its silence.
            self._log.warning("not taken off the nodes", reason=reason)

    async def _take_off(self, grace_s: float) -> str:
        """Take the broker off the nodes; return why that failed, empty: it did not."""
        try:
            await self._metadata.call(
                "RemoveNode",
                meta_pb2.RemoveNodeRequest(
                    node_id=self._node_id, force=True, boot_id=self._boot_id
                ),
                meta_pb2.RemoveNodeResponse,
                timeout_s=min(grace_s, self._config.metadata.deregister_timeout_ms / 1000),
            )
        except MetaRefused as refused:
            is_gone = refused.outcome == meta_pb2.META_OUTCOME_NOT_FOUND
            return "" if is_gone else str(refused)
        except AngeliaError as failure:
            return str(failure)
        return ""
