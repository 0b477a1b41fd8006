"""A plugin's side of raft groups: commands of its own and the rows of those.

A process gives its node the plugins that its configuration names. A plugin's commands stop a
replica that does not have it, because skipping them would make replicas differ: every storage node
has it before a broker uses it. `node_plugins` has what a plugin does beside raft groups.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from strata_mq.commands import CommandKind
from strata_storage.base.errors import Refused
from strata_storage.leading.leader import GroupLeader
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.machine_plugins import MachinePlugin


class GroupPlugin(MachinePlugin, Protocol):
    """A plugin's side of one raft group."""

    def lead(self, leader: GroupLeader) -> None:
        """This replica leads; everything in its log is applied."""

    def follow(self, refusal: Refused) -> None:
        """This replica leads no more; whoever waits is refused."""


class OpensGroups(Protocol):
    """Makes a plugin's side of raft groups that are hosted."""

    @property
    def command_kinds(self) -> Collection[CommandKind]:
        """The commands that it applies."""

    def group(self, machine: GroupMachine) -> GroupPlugin:
        """Return what it does in a raft group that is hosted from now on."""
