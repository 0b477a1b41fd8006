"""Plugins of a storage node: their side of raft groups (`plugins`), and a service of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strata_angelia.ports import Server
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_storage.base.disk_guard import DiskGuard
from strata_storage.group.engine import GroupEngine
from strata_storage.group.plugins import OpensGroups


class PluginNode(Protocol):
    """The part of its node that a plugin sees."""

    def engine(self, raft_group: int) -> GroupEngine:
        """Return a hosted raft group's engine.

        Raises:
            Refused: OUTCOME_UNKNOWN_GROUP.
        """

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica, "" if unknown."""

    @property
    def disk_guard(self) -> DiskGuard:
        """How full the disk is."""

    def replicas(self) -> Mapping[int, Replica]:
        """Return the replicas by raft group."""


class StoragePlugin(OpensGroups, Protocol):
    """One plugin of one storage node."""

    def removed(self, raft_group: int) -> None:
        """A raft group is hosted no more."""

    def start(
        self, node: PluginNode, server: Server, tasks: Tasks, clock: Clock, metrics: Metrics
    ) -> None:
        """Register its service and run what it does beside calls."""
