"""Parts of a raft group's state machine that plugins bring: commands and rows of their own.

Without a plugin there is nothing here, and a command that needs one stops the replica: skipping it
would make replicas differ.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from strata_mq.commands import CommandKind
from strata_state.ports import RowBatch
from strata_storage.base.errors import ApplyError

PLUGIN_KINDS = frozenset((CommandKind.KV_WRITE, CommandKind.LITE_TOPICS))
"""Commands that the core does not know."""


class MachinePlugin(Protocol):
    """Part of a raft group's state machine: rows of its own, written with those of the core."""

    def apply(self, batch: RowBatch, raft_index: int, payload: bytes) -> int:
        """Stage the rows of a committed entry; return its group time, 0 if it has none.

        Raises:
            Exception: any; apply of the raft group stops there.
        """

    def written(self) -> None:
        """The staged rows are in the store."""

    def forget(self) -> None:
        """The staged rows are not in the store."""

    def reload(self) -> None:
        """The rows in the store were replaced by a snapshot."""

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Stage the removal of what belongs to a topic."""

    def trim(self, batch: RowBatch, oldest_ms: int) -> None:
        """Stage the removal of what nobody asked for since a group time."""

    def holds(self, topic_id: int) -> bool:
        """Whether the topic's queue must not move: what belongs to it cannot."""

    def settle(self, applied_index: int) -> None:
        """Write what only memory has, before rows are flushed or copied.

        Raises:
            StateError: nothing was written.
        """

    def settled_index(self, applied_index: int) -> int:
        """Return the index up to which the store has all rows; at most the applied one."""

    def redo(self, payload: bytes) -> None:
        """Apply again in memory an entry between the settled and the applied index."""


class MachinePlugins:
    """Those of one raft group, by the commands they apply."""

    __slots__ = ("_all", "_by_kind")

    def __init__(self) -> None:
        self._all: list[MachinePlugin] = []
        self._by_kind: dict[CommandKind, MachinePlugin] = {}

    def add(self, kinds: Collection[CommandKind], plugin: MachinePlugin) -> None:
        """Let a plugin apply commands."""
        self._all.append(plugin)
        self._by_kind.update(dict.fromkeys(kinds, plugin))

    def apply(self, batch: RowBatch, kind: CommandKind, raft_index: int, payload: bytes) -> int:
        """Stage the rows of an entry; return its group time.

        Raises:
            ApplyError: the plugin is not loaded.
        """
        plugin = self._by_kind.get(kind)
        if plugin is None:
            raise ApplyError(
                f"entry {raft_index} is a {kind.name}: load the plugin that made it (`plugins`)"
            )
        return plugin.apply(batch, raft_index, payload)

    def written(self) -> None:
        """The staged rows are in the store."""
        for plugin in self._all:
            plugin.written()

    def forget(self) -> None:
        """The staged rows are not in the store."""
        for plugin in self._all:
            plugin.forget()

    def reload(self) -> None:
        """The rows in the store were replaced by a snapshot."""
        for plugin in self._all:
            plugin.reload()

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Stage the removal of what belongs to a topic."""
        for plugin in self._all:
            plugin.drop_topic(batch, topic_id)

    def trim(self, batch: RowBatch, oldest_ms: int) -> None:
        """Stage the removal of what nobody asked for since a group time."""
        for plugin in self._all:
            plugin.trim(batch, oldest_ms)

    def holds(self, topic_id: int) -> bool:
        """Whether the topic's queue must not move."""
        return any(plugin.holds(topic_id) for plugin in self._all)

    def settle(self, applied_index: int) -> None:
        """Write what only memory has, before rows are flushed or copied."""
        for plugin in self._all:
            plugin.settle(applied_index)

    def settled_index(self, applied_index: int) -> int:
        """Return the index up to which the store has all rows; at most the applied one."""
        settled = (plugin.settled_index(applied_index) for plugin in self._all)
        return min(settled, default=applied_index)

    def redo(self, kind: CommandKind, payload: bytes) -> None:
        """Apply again in memory what the store does not have."""
        plugin = self._by_kind.get(kind)
        if plugin is not None:
            plugin.redo(payload)
