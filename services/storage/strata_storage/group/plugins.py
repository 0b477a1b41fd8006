"""Plugins of a storage node: commands of their own, the rows of those, and a service.

A process gives its node the plugins that its configuration names. A plugin's commands stop a
replica that does not have it, because skipping them would make replicas differ: every storage node
has it before a broker uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from strata_angelia.ports import Server
from strata_mq.commands import CommandKind
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_storage.base.disk_guard import DiskGuard
from strata_storage.base.errors import Refused
from strata_storage.leading.leader import GroupLeader
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.machine_plugins import MachinePlugin

if TYPE_CHECKING:
    from strata_storage.group.engine import GroupEngine


class GroupPlugin(MachinePlugin, Protocol):
    """A plugin's side of one raft group."""

    def lead(self, leader: GroupLeader) -> None:
        """This replica leads; everything in its log is applied."""

    def follow(self, refusal: Refused) -> None:
        """This replica leads no more; whoever waits is refused."""


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


class StoragePlugin(Protocol):
    """One plugin of one storage node."""

    @property
    def command_kinds(self) -> Collection[CommandKind]:
        """The commands that it applies."""

    def group(self, machine: GroupMachine) -> GroupPlugin:
        """Return what it does in a raft group that is hosted from now on."""

    def removed(self, raft_group: int) -> None:
        """A raft group is hosted no more."""

    def start(
        self, node: PluginNode, server: Server, tasks: Tasks, clock: Clock, metrics: Metrics
    ) -> None:
        """Register its service and run what it does beside calls."""
