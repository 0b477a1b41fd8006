"""The part `lite` of one storage node, put together. Every storage node has it.

Task `lite-expiry`: ends lite topics without traffic, in the raft groups led here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from strata.storage.v1 import lite_pb2
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
from strata_storage.lite.group import LiteGroup
from strata_storage.lite.metrics import METRICS
from strata_storage.lite.options import LifetimeOf, LiteOptions
from strata_storage.lite.servicer import LiteServicer
from strata_storage.rows.machine import GroupMachine

SERVICE = lite_pb2.DESCRIPTOR.services_by_name["LiteService"]


class LiteStoragePlugin:
    """`strata_storage.group.node_plugins.StoragePlugin`.

    Args:
        options: limits.
        lifetime_of: how long lite topics of a parent topic live without traffic.
    """

    command_kinds: Collection[CommandKind] = (CommandKind.LITE_TOPICS,)

    def __init__(self, options: LiteOptions, lifetime_of: LifetimeOf) -> None:
        self._options = options
        self._lifetime_of = lifetime_of
        self._groups: dict[int, LiteGroup] = {}
        self._logger = get_logger("lite")

    def group(self, machine: GroupMachine) -> LiteGroup:
        """Return the lite topics of a raft group that is hosted from now on."""
        group = self._groups[machine.raft_group] = LiteGroup(machine, self._options)
        return group

    def removed(self, raft_group: int) -> None:
        """A raft group is hosted no more."""
        self._groups.pop(raft_group, None)

    def start(
        self, node: PluginNode, server: Server, tasks: Tasks, clock: Clock, metrics: Metrics
    ) -> None:
        """Serve lite topics."""
        metrics.declare(METRICS)
        serve(server, SERVICE, LiteServicer(node, self._group_of, self._options), Refusals(node))
        metrics.gauge("strata_lite_topics", self._count)
        expired = metrics.counter("strata_lite_topics_expired_total")
        tasks.spawn("lite-expiry", self._expire(expired))

    def _group_of(self, raft_group: int) -> LiteGroup:
        group = self._groups.get(raft_group)
        if group is None:
            raise Refused(pb.OUTCOME_UNKNOWN_GROUP, f"raft group {raft_group} is not hosted here")
        return group

    def _count(self) -> int:
        return sum(group.count for group in self._groups.values() if group.leader is not None)

    async def _expire(self, expired: Counter) -> None:
        while True:
            await asyncio.sleep(self._options.expiry_interval_ms / 1_000)
            for raft_group, group in list(self._groups.items()):
                if group.leader is None:
                    continue
                try:
                    expired.add(await group.leader.expire(self._lifetime_of))
                except (Refused, StateError) as error:
                    self._logger.info("expiry waits", raft_group=raft_group, reason=str(error))
