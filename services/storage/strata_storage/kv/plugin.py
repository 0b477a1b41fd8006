"""The plugin `kv` of one storage node, put together.

Task `kv-expiry`: ends expired items, in the raft groups led here. Unchanged raft groups cost
nothing: a raft group without such items is not looked at again until one is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from strata.kv.v1 import kv_storage_pb2
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import Server
from strata_angelia.serving import serve
from strata_mq.commands import CommandKind
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Counter, Metrics
from strata_runtime.tasks import Tasks
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.node_plugins import PluginNode
from strata_storage.group.refusals import Refusals
from strata_storage.kv.group import KvGroup
from strata_storage.kv.metrics import METRICS
from strata_storage.kv.options import KvOptions
from strata_storage.kv.servicer import KvStorageServicer
from strata_storage.rows.machine import GroupMachine

SERVICE = kv_storage_pb2.DESCRIPTOR.services_by_name["KvStorageService"]


class KvStoragePlugin:
    """`strata_storage.group.plugins.StoragePlugin`."""

    command_kinds: Collection[CommandKind] = (CommandKind.KV_WRITE,)

    def __init__(self, options: KvOptions) -> None:
        self._options = options
        self._groups: dict[int, KvGroup] = {}
        self._logger = get_logger("kv")

    def group(self, machine: GroupMachine) -> KvGroup:
        """Return the tables of a raft group that is hosted from now on."""
        group = self._groups[machine.raft_group] = KvGroup(machine, self._options)
        return group

    def removed(self, raft_group: int) -> None:
        """A raft group is hosted no more."""
        self._groups.pop(raft_group, None)

    def start(
        self, node: PluginNode, server: Server, tasks: Tasks, clock: Clock, metrics: Metrics
    ) -> None:
        """Serve tables."""
        metrics.declare(METRICS)
        servicer = KvStorageServicer(node, self._group_of, self._options, metrics=metrics)
        serve(server, SERVICE, servicer, Refusals(node))
        metrics.gauge("strata_kv_used", self._used)
        tasks.spawn("kv-expiry", self._expire(metrics.counter("strata_kv_expired_total")))

    def _group_of(self, raft_group: int) -> KvGroup:
        group = self._groups.get(raft_group)
        if group is None:
            raise Refused(pb.OUTCOME_UNKNOWN_GROUP, f"raft group {raft_group} is not hosted here")
        return group

    async def _expire(self, expired: Counter) -> None:
        while True:
            await asyncio.sleep(self._options.expiry_interval_ms / 1_000)
            for raft_group, group in list(self._groups.items()):
                if group.leader is None:
                    continue
                try:
                    expired.add(group.leader.expire())
                except (Refused, StateError) as error:
                    self._logger.info("expiry waits", raft_group=raft_group, reason=str(error))

    def _used(self) -> list[tuple[float, dict[str, str]]]:
        groups = list(self._groups.values())
        used = {
            "max_batches_in_flight": sum(len(group.leader) for group in groups if group.leader),
            "max_followers": sum(group.follower_count for group in groups),
            "max_dumps": sum(group.dumps.used for group in groups),
            "memory_unsettled_max_bytes": sum(group.tables.unsettled_bytes for group in groups),
        }
        return [(float(value), {"limit": limit}) for limit, value in used.items()]
