"""One run of a member, from opening its data folder to closing it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from strata_angelia.cluster_id import ClusterId
from strata_cli.container.files import MemberFile
from strata_cli.processes.access_control import shown_access_control, with_access_control
from strata_cli.processes.audit_file import audit_files
from strata_cli.processes.cluster import (
    Build,
    ProcessMember,
    StartedMember,
    Surroundings,
    peer_certificate,
)
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.place import MachinePlace
from strata_cli.processes.shared_parts import SharedParts
from strata_runtime.audit import NoAuditSink
from strata_runtime.blocking import run_to_end
from strata_runtime.clock import Clock
from strata_runtime.health import Health
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.metrics import Metrics
from strata_runtime.observability import Observability, observe


@dataclass(frozen=True, slots=True)
class MemberWorld:
    """Parts that a container gives each of its members.

    Attributes:
        clock: time.
        shared: parts that all members use.
        cluster: that all members belong to.
        machine: that all members share.
    """

    clock: Clock
    shared: SharedParts
    cluster: ClusterId
    machine: str


class MemberRun:
    """See the module docstring. A fatal failure of the member ends this run alone.

    Args:
        file: the member as its file says.
        world: what the container gives it.
        on_ready: called with the fields of its ready line when it serves.
    """

    def __init__(
        self,
        file: MemberFile,
        world: MemberWorld,
        on_ready: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._config = with_access_control(file.config)
        self._world = world
        self._on_ready = on_ready
        self._role = FolderRole(file.config.member.role)
        self._lifecycle: Lifecycle | None = None
        self._member: ProcessMember | None = None
        self._metrics: Metrics | None = None
        self._is_told_to_stop = False

    async def run(self) -> None:
        """Return when the member has stopped.

        Raises:
            StrataError, OSError: it cannot start, or it failed.
        """
        open_folder = partial(DataFolder.open, self._config.member.data_dir, self._role)
        folder = await run_to_end(open_folder, undo=DataFolder.close)
        try:
            self._world.cluster.learn(folder.identity.cluster_id)
            await self._serve(folder)
        finally:
            self._metrics = self._member = None
            folder.close()

    def request_stop(self) -> None:
        """Begin to drain and stop."""
        self._is_told_to_stop = True
        if self._lifecycle is not None:
            self._lifecycle.request_stop()

    def health(self) -> Health:
        """Return how the member does."""
        return Health(serves=False) if self._member is None else self._member.health()

    def disk_bytes(self) -> tuple[int, int]:
        """Return the used bytes and the quota of its disk; 0: it stores nothing."""
        return (0, 0) if self._member is None else self._member.disk_bytes()

    async def page(self) -> bytes:
        """Return its metrics in the Prometheus text format; empty: it has none now."""
        metrics = self._metrics
        if metrics is None:
            return b""
        metrics.read_gauges()
        return await asyncio.to_thread(metrics.render)

    async def _serve(self, folder: DataFolder) -> None:
        config, role = self._config, self._role
        observed = observe(
            *(config.observability, f"strata-{role}", role, folder.identity.node_id(role)),
            *(self._world.clock, self._on_fatal),
        )
        try:
            await self._run_services(folder, observed)
        finally:
            observed.metrics.close()

    async def _run_services(self, folder: DataFolder, observed: Observability) -> None:
        config, metrics, clock = self._config, observed.metrics, self._world.clock
        files = audit_files(config.node, metrics)
        audit = files[0] if files else NoAuditSink()
        certificate = await asyncio.to_thread(peer_certificate, self._role, config, metrics, audit)
        member = build_of(self._role)(
            Surroundings(
                config=config,
                folder=folder,
                # One per run: for the cluster this is another boot.
                boot_id=secrets.randbits(64),
                clock=clock,
                metrics=metrics,
                on_fatal=self._on_fatal,
                tracer=observed.tracer,
                cluster=self._world.cluster,
                is_stopping=self._is_stopping,
                audit=audit,
                place=MachinePlace(self._world.machine),
                certificate=certificate,
                shared=self._world.shared,
            )
        )
        services: list[Service] = [*observed.services]
        if certificate is not None:
            services.append(certificate)
        told = _Told(lambda: {**member.ready(), **shown_access_control(config)}, self._on_ready)
        services += [*files, StartedMember(member), told]
        lifecycle = Lifecycle(services, grace_s=config.node.drain_ms / 1_000, clock=clock)
        self._lifecycle, self._member, self._metrics = lifecycle, member, metrics
        if self._is_told_to_stop:
            lifecycle.request_stop()
        await lifecycle.run(handle_signals=False)

    def _is_stopping(self) -> bool:
        return self._is_told_to_stop or (
            self._lifecycle is not None and self._lifecycle.is_stopping
        )

    def _on_fatal(self, name: str, failure: BaseException) -> None:
        """End this run: a loop of the member has failed."""
        if self._lifecycle is not None:
            self._lifecycle.on_fatal(name, failure)


class _Told:
    """The last service of a member: says that everything before it serves."""

    name = "ready"

    def __init__(
        self,
        fields: Callable[[], Mapping[str, object]],
        on_ready: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._fields = fields
        self._on_ready = on_ready

    async def start(self) -> None:
        """Tell it."""
        self._on_ready(self._fields())

    async def stop(self, grace_s: float) -> None:
        """Nothing to end."""


def build_of(role: FolderRole) -> Build:
    """Return what builds a member of a role; the modules of the other role are not imported."""
    if role is FolderRole.BROKER:
        from strata_cli.processes.broker import build
    else:
        from strata_cli.processes.storage import build
    return build


def print_line(name: str, fields: Mapping[str, object]) -> None:
    """Print a ready line of a container or of one of its members."""
    shown = {**fields, "pid": os.getpid()}
    print(name, *(f"{key}={value}" for key, value in shown.items()), flush=True)
