"""Plugins of a storage node: commands of their own, the rows of those, and a service.

A plugin is named in the configuration (`plugins`); the modules of an unnamed plugin are never
imported. Its commands stop a replica that does not have it: skipping them would make replicas
differ, so it is loaded on every storage node before a broker uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from strata_angelia.ports import Server
from strata_mq.commands import CommandKind
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_storage.base.config import StorageConfig
from strata_storage.base.disk_guard import DiskGuard
from strata_storage.base.errors import Refused
from strata_storage.leading.leader import Leader
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.machine_plugins import MachinePlugin

if TYPE_CHECKING:
    from strata_storage.group.engine import GroupEngine

NAMES = ("kv",)
"""Plugins there are; `strata_storage.NAME.plugin.load` makes one."""


class GroupPlugin(MachinePlugin, Protocol):
    """What a plugin does in one raft group."""

    def lead(self, leader: Leader) -> None:
        """This replica leads; everything in its log is applied."""

    def follow(self, refusal: Refused) -> None:
        """This replica leads no more; whoever waits is refused."""


class PluginNode(Protocol):
    """What a plugin sees of its node."""

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


def load(names: Collection[str], config: StorageConfig) -> list[StoragePlugin]:
    """Import and make plugins.

    Raises:
        ConfigError: there is no such plugin.
    """
    plugins: list[StoragePlugin] = []
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"plugins: no plugin {name!r}; there are: {', '.join(NAMES)}")
        module: Any = import_module(f"strata_storage.{name}.plugin")
        plugins.append(module.load(config))
    return plugins
