"""Keeps this broker among the nameserver's nodes: registers, then heartbeats for its life.

Which nodes are alive is known to the nameserver in memory only; one that restarted answers a
heartbeat with NOT_FOUND, and the broker registers again.
"""

from __future__ import annotations

import asyncio

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.backoff import Random
from strata_broker.config import MetadataSection
from strata_broker.metadata_watch import MetaClient, MetaRefusedError
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger


class Registration:
    """One node's place among the nodes.

    Args:
        node: how it registers.
        meta: the nameserver.
        config: the period.
        random: spreads the heartbeats of many brokers that started together.
    """

    def __init__(
        self, node: meta_pb2.Node, meta: MetaClient, config: MetadataSection, random: Random
    ) -> None:
        self._node = node
        self._meta = meta
        self._period_s = config.heartbeat_period_ms / 1000
        self._random = random
        self._log = get_logger("broker")

    async def register(self) -> None:
        """Register once.

        Raises:
            MetaRefusedError: the nameserver does not take the node.
            AngeliaError, TimeoutError: it does not answer.
        """
        await self._meta.call(
            "RegisterNode",
            meta_pb2.RegisterNodeRequest(node=self._node),
            meta_pb2.RegisterNodeResponse,
        )

    async def keep(self) -> None:
        """Heartbeat until cancelled; without a nameserver the broker serves on (rule 16)."""
        while True:
            await asyncio.sleep(self._period_s * (0.75 + self._random() / 2))
            try:
                await self.heartbeat()
            except (MetaRefusedError, AngeliaError, TimeoutError) as failure:
                self._log.warning("no heartbeat", reason=one_line(failure))

    async def heartbeat(self) -> None:
        """Tell once that the broker is alive; register again where it is not known.

        Raises:
            MetaRefusedError, AngeliaError, TimeoutError: as `register`.
        """
        node = self._node
        request = meta_pb2.HeartbeatRequest(node_id=node.node_id, boot_id=node.boot_id)
        try:
            await self._meta.call("Heartbeat", request, meta_pb2.HeartbeatResponse)
        except MetaRefusedError as refused:
            if refused.outcome != meta_pb2.META_OUTCOME_NOT_FOUND:
                raise
            await self.register()
