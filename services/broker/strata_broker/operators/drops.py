"""Drops the data of deleted topics and consumer groups, even if processes die meanwhile.

A deletion leaves a tombstone in the metadata (rule 17). Every broker drops the data that tombstones
name in every raft group, and confirms it once all have answered; then the tombstone is done. The
broker that serves the deletion drops at once, and this task repeats drops that failed. A second
drop changes nothing, so brokers need not agree on who does it.
"""

from __future__ import annotations

import asyncio

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.storage_client import StorageClient
from strata_metadata.client import MetadataClient
from strata_metadata.enum_names import name_of
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError
from strata_runtime.backoff import Random
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics


class Dropper:
    """Drops the data that tombstones name.

    Args:
        view: tombstones that are not done, and the raft groups.
        meta: gets the confirmation of what was dropped everywhere.
        storage: drops.
        config: the period.
        random: spreads the rounds of several brokers.
        metrics: how much is still to be dropped.
    """

    def __init__(
        self,
        view: MetadataView,
        meta: MetadataClient,
        storage: StorageClient,
        *,
        config: MetadataSection,
        random: Random,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._meta = meta
        self._storage = storage
        self._timeout_s = config.call_timeout_ms / 1000
        self._period_s = config.drop_retry_interval_ms / 1000
        self._random = random
        self._log = get_logger("broker")
        metrics.gauge("strata_broker_pending_drops", lambda: len(view.pending_drops()))

    async def run(self) -> None:
        """Repeat drops until cancelled, one after another: there is no hurry."""
        while True:
            await asyncio.sleep(self._period_s * (0.5 + self._random()))
            for tombstone in self._view.pending_drops():
                await self.drop(tombstone.kind, tombstone.id)

    async def drop(self, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int) -> bool:
        """Drop one thing's data; return whether all raft groups did and the nameserver knows it."""
        raft_groups = [row.raft_group for row in self._view.raft_groups()]
        if not raft_groups:
            return False
        everywhere = True
        for raft_group in raft_groups:
            try:
                await self._storage.call(
                    raft_group,
                    "Drop",
                    _drop_request(raft_group, kind, dropped_id),
                    storage_pb2.DropResponse,
                    timeout_s=self._timeout_s,
                )
            except RequestError as failure:
                everywhere = False
                self._warn("data not dropped yet", kind, dropped_id, failure)
        return everywhere and await self._confirm(kind, dropped_id)

    async def _confirm(self, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int) -> bool:
        request = meta_pb2.ConfirmDroppedRequest(kind=kind, id=dropped_id)
        try:
            await self._meta.call("ConfirmDropped", request, meta_pb2.ConfirmDroppedResponse)
        except (MetaRefused, AngeliaError, TimeoutError) as failure:
            self._warn("drop not confirmed yet", kind, dropped_id, failure)
            return False
        return True

    def _warn(
        self,
        text: str,
        kind: meta_pb2.TombstoneKind.ValueType,
        dropped_id: int,
        failure: Exception,
    ) -> None:
        name = name_of(meta_pb2.TombstoneKind, kind).removeprefix("TOMBSTONE_KIND_").lower()
        self._log.warning(text, what=name, id=dropped_id, reason=one_line(failure))


def _drop_request(
    raft_group: int, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int
) -> storage_pb2.DropRequest:
    if kind == meta_pb2.TOMBSTONE_KIND_TOPIC:
        return storage_pb2.DropRequest(raft_group=raft_group, topic_id=dropped_id)
    return storage_pb2.DropRequest(raft_group=raft_group, consumer_group_id=dropped_id)
