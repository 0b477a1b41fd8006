"""The members of a container as one service: all start beside each other, brokers stop first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from strata_angelia.cluster_id import ClusterId
from strata_cli.container.boot_hook import BootHook
from strata_cli.container.config import ContainerConfig
from strata_cli.container.files import MemberFile, read_member
from strata_cli.container.member_log import MemberLogs
from strata_cli.container.member_run import MemberWorld
from strata_cli.container.metrics import METRICS
from strata_cli.container.supervised import SupervisedMember, Supervision
from strata_cli.processes.cluster import open_peer_channel
from strata_cli.processes.container import Container
from strata_cli.processes.shared_parts import SharedConnections, SharedParts
from strata_runtime.errors import ConfigError
from strata_runtime.health import Health
from strata_runtime.runtime import Runtime
from strata_runtime.timeouts import Timeout
from strata_state.rocksdb_store import SharedBlockCache

_STOP_ORDER = ("storage", "broker")


class BrokerContainer:
    """See the module docstring; a `Service`.

    Args:
        path: of the container's file.
        config: of the container.
        cluster: of all members.
        runtime: what the process gives it.

    Attributes:
        config: of the container.
        open_channel: makes a channel to a nameserver over a shared connection.
    """

    name = "container"

    def __init__(
        self, path: Path, config: ContainerConfig, cluster: ClusterId, *, runtime: Runtime
    ) -> None:
        section = config.container
        runtime.metrics.declare(METRICS)
        self.config = config
        self._path = path
        self._runtime = runtime
        cache = SharedBlockCache(section.block_cache_bytes)
        connections = SharedConnections(partial(open_peer_channel, cluster=cluster))
        self.open_channel = connections.lease
        self._world = MemberWorld(
            runtime.clock, SharedParts(connections, cache), cluster, config.cluster.machine
        )
        self._supervision = Supervision(
            runtime.random,
            config.node.max_restart_pause_ms,
            runtime.metrics.counter("strata_container_restarts_total"),
            runtime.on_fatal,
            BootHook(section.boot_hook, section.boot_hook_timeout_ms / 1_000),
        )
        self._logs = MemberLogs(path.parent / section.log_dir, section, runtime.metrics)
        self._container = Container(runtime.clock, max_members=section.max_members)
        self._members: dict[str, SupervisedMember] = {}
        # Out of the list and not stopped yet, by name.
        self._leaving: dict[str, SupervisedMember] = {}
        metrics = runtime.metrics
        metrics.gauge("strata_container_members", self._states)
        metrics.gauge("strata_container_members_maximum", lambda: section.max_members)
        metrics.gauge("strata_container_block_cache_bytes", lambda: cache.used_bytes)
        metrics.gauge("strata_container_shared_connections", lambda: len(connections))

    @property
    def members(self) -> Sequence[SupervisedMember]:
        """All members, in the order in which they were added."""
        return tuple(self._members.values())

    async def start(self) -> None:
        """Start all members; return when each serves, failed once, or time is up.

        Raises:
            ConfigError: a member's file cannot be used: an operator is there to read why.
        """
        section = self.config.container
        paths = [self._path.parent / each for each in section.members]
        if len(paths) > section.max_members:
            raise ConfigError(
                f"{self._path}: container.members has {len(paths)} files; a container may have "
                f"{section.max_members} members: raise container.max_members"
            )
        files = [read_member(path, self.config) for path in paths]
        check_together(files)
        # They stop the other way round: clients leave brokers while storage nodes still store.
        files.sort(key=lambda each: _STOP_ORDER.index(each.config.member.role))
        try:
            for file in files:
                await self.add(file)
            with suppress(TimeoutError):
                async with Timeout(section.max_start_wait_ms / 1_000):
                    for member in self.members:
                        await member.attempted()
        except BaseException:
            await self.stop(self.config.node.drain_ms / 1_000)
            raise

    async def stop(self, grace_s: float) -> None:
        """Drain and stop all members, brokers first."""
        clock = self._runtime.clock
        deadline_s = clock.monotonic_s() + grace_s
        # A member that is being removed has a shorter grace now, and its remover may be gone.
        going = (*self.members, *self._leaving.values())
        self._members.clear()
        for role in reversed(_STOP_ORDER):
            left_s = max(1.0, deadline_s - clock.monotonic_s())
            async with asyncio.TaskGroup() as stops:
                for member in going:
                    if member.file.config.member.role == role:
                        stops.create_task(member.stop(left_s))
        await self._logs.close()

    def shown(self) -> Mapping[str, object]:
        """Return the fields of the container's ready line."""
        return {
            "container": self._path,
            "machine": self.config.cluster.machine,
            "members": len(self._members),
            "serving": sum(member.state == "serving" for member in self.members),
        }

    def health(self) -> Health:
        """Return how the container does: it serves while a member does, or while it has none."""
        each = [member.health() for member in self.members]
        problems = tuple(problem for health in each for problem in health.problems)
        return Health(
            not each or any(health.serves for health in each),
            all(health.is_ready for health in each),
            problems,
        )

    async def pages(self) -> list[bytes]:
        """Return the metrics of all members, as each renders them."""
        return [page for member in self.members if (page := await member.page())]

    async def add(self, file: MemberFile) -> SupervisedMember:
        """Begin to start a member, and hold it.

        Raises:
            ValueError: a member of that name is there, or the container is full.
        """
        take_line = await self._logs.open(file) if file.config.member.isolate_log else None
        member = SupervisedMember(file, self._world, self._supervision, take_line=take_line)
        await self._container.add(file.config.member.role, member)
        self._members[member.name] = member
        return member

    async def remove(self, name: str, grace_s: float) -> None:
        """Drain and stop a member.

        Raises:
            KeyError: there is no such member.
        """
        self._leaving[name] = self._members.pop(name)
        await self._container.remove(name, grace_s)
        self._leaving.pop(name, None)
        await self._logs.forget(name)

    def _states(self) -> list[tuple[float, dict[str, str]]]:
        counts = Counter(member.state for member in self.members)
        return [(counts[state], {"state": state}) for state in ("serving", "starting", "waiting")]


def check_together(files: Sequence[MemberFile]) -> None:
    """Refuse members that cannot be in one container.

    Raises:
        ConfigError: two have one name or one data folder.
    """
    names: dict[str, Path] = {}
    folders: dict[Path, Path] = {}
    for file in files:
        name, folder = file.name, file.config.member.data_dir
        if name in names:
            raise ConfigError(f"{file.path}: the member {name} is in {names[name]}, too")
        if folder in folders:
            raise ConfigError(f"{file.path}: the data folder {folder} is that of {folders[folder]}")
        names[name], folders[folder] = file.path, file.path
