"""The verbs of `strata local` over a plan and its processes.

Plan and process files change under a lock of the folder, which is held only for moments: while one
command waits for a process to serve, another command may kill it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import TypedDict

from strata_cli.errors import CliError
from strata_cli.local.certificates import give_certificate
from strata_cli.local.plan import (
    BROKERS,
    ROLES,
    AccessControl,
    ClusterPlan,
    ClusterTls,
    Member,
    PlanError,
    Role,
    free_ports,
    load,
    replace_text,
    save,
)
from strata_cli.local.processes import Process, State
from strata_cli.local.readiness import wait_until_ready
from strata_cli.processes.data_folder import IDENTITY_FILE
from strata_runtime.listening import ListenError, check_free

_LOCK = "lock"
_KILL_TIMEOUT_S = 10.0


class ProcessView(TypedDict):
    """One line of `local status`.

    Attributes:
        node: id under which every other command knows it, or the ids of its processes, separated
            by commas; empty: it has none yet, or none at all.
        metrics: host:port for Prometheus and health; empty: none.
    """

    name: str
    role: Role
    pid: int | None
    address: str
    state: State
    node: str
    metrics: str


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a verb waits.

    Attributes:
        start_s: for one process until it serves.
        stop_s: for one process to drain; then it is killed.
    """

    start_s: float = 60.0
    stop_s: float = 30.0


class LocalCluster:
    """A cluster in a folder, whether its processes run or not.

    Args:
        folder: holds the plan and one folder for each process.
        plan: what the cluster is made of.
        timeouts: how long verbs wait.
        is_new: whether the plan was made just now.
    """

    def __init__(
        self,
        folder: Path,
        plan: ClusterPlan,
        timeouts: Timeouts | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self._timeouts = timeouts or Timeouts()
        self._is_new = is_new

    @classmethod
    def open(cls, folder: Path, timeouts: Timeouts | None = None) -> LocalCluster:
        """Return the cluster in a folder.

        Raises:
            CliError: there is none.
        """
        plan = load(folder)
        if plan is None:
            raise CliError(f"{folder} holds no local cluster; strata local up creates one")
        return cls(folder, plan, timeouts)

    @classmethod
    def make(
        cls, folder: Path, make_plan: Callable[[], ClusterPlan], timeouts: Timeouts | None = None
    ) -> LocalCluster:
        """Return the cluster in a folder, made by `make_plan` if there is none.

        A cluster whose first start is known to have failed does not count: it holds no data, and
        its plan may be the reason of the failure. A first `up` that was killed tells nothing: its
        processes may serve, and hold messages.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"{folder}: {error.strerror}") from None
        with _locked(folder):
            plan = load(folder)
            if plan is not None and not plan.served and not _runs(folder, plan):
                for member in plan.members:
                    rmtree(folder / member.name, ignore_errors=True)
                plan = None
            is_new = plan is None
            if plan is None:
                plan = make_plan()
                save(folder, plan)
        return cls(folder, plan, timeouts, is_new=is_new)

    def use(
        self,
        config: Path | None,
        access_control: AccessControl | None,
        cluster_tls: ClusterTls | None = None,
    ) -> None:
        """Set what holds for processes that start from now on.

        Args:
            config: their configuration; None: keep it.
            access_control: whether they check who calls; None: keep it.
            cluster_tls: whether they use TLS between each other; None: keep it.
        """
        with _locked(self.folder):
            plan = load(self.folder) or self.plan
            if config is not None:
                plan = replace(plan, config=str(config.resolve()))
            if access_control is not None:
                plan = replace(plan, access_control=access_control)
            if cluster_tls is not None:
                plan = replace(plan, cluster_tls=cluster_tls)
            if plan != self.plan:
                save(self.folder, plan)
            self.plan = plan

    def status(self) -> list[ProcessView]:
        """Return the state of every process."""
        return [self._view(member) for member in self.plan.members]

    def up(self) -> None:
        """Start processes that do not run, tier after tier, and wait until they serve.

        Raises:
            CliError: a port is in use; nothing was started.
            NotReadyError: a process did not serve; the processes started here are stopped.
        """
        started: list[str] = []
        try:
            self._check_ports(m for m in self.plan.members if self._state(m) in ("stopped", "dead"))
            for role in ROLES:
                idle = [m for m in self.plan.of(role) if self._state(m) in ("stopped", "dead")]
                started += [member.name for member in idle]
                self._start(idle)
        except BaseException:
            self._stop([self.plan.member(name) for name in started])
            if self._is_new:
                self._note(served=False)
            raise
        self._is_new = False
        self._note(served=True)

    def start(self, names: Iterable[str]) -> None:
        """Start processes on the data they have, and wait until they serve.

        Raises:
            CliError: one is unknown or runs already.
            NotReadyError: one did not serve.
        """
        members = self._members(names)
        for member in members:
            state = self._state(member)
            if state in ("running", "paused"):
                raise CliError(f"{member.name} is {state}")
        self._check_ports(members)
        self._start(members)
        self._note(served=True)

    def kill(self, names: Iterable[str]) -> None:
        """End processes with SIGKILL and wait until they are gone."""
        self._signal(names, signal.SIGKILL, {"dead", "stopped"})

    def pause(self, names: Iterable[str]) -> None:
        """Stop processes with SIGSTOP: they keep memory and sockets and do nothing."""
        self._signal(names, signal.SIGSTOP, {"paused"})

    def resume(self, names: Iterable[str]) -> None:
        """Resume paused processes."""
        self._signal(names, signal.SIGCONT, {"running"})

    def stop(self, names: Iterable[str]) -> None:
        """Drain and end processes; a process that does not end in time is killed."""
        self._stop(self._members(names))

    def down(self) -> None:
        """Stop everything, brokers first; data and ports stay."""
        for role in reversed(ROLES):
            self._stop(self.plan.of(role))

    def add(self, role: Role) -> Member:
        """Add one more process and start it.

        Raises:
            NotReadyError: it did not serve; it stays in the plan, stopped.
        """
        with _locked(self.folder):
            plan = load(self.folder) or self.plan
            used = [entry.name for entry in self.folder.iterdir()]
            self.plan, member = plan.with_member(
                role, free_ports(plan.taken_ports(), run=plan.shards), used
            )
            save(self.folder, self.plan)
        self._start([member])
        self._note(served=True)
        return member

    def remove(self, name: str) -> None:
        """Forget a process that does not run; its folder stays.

        Raises:
            CliError: it is unknown or runs.
        """
        with _locked(self.folder):
            plan = load(self.folder) or self.plan
            member = plan.member(name)
            state = self._state(member)
            if state in ("running", "paused"):
                raise CliError(f"{name} is {state}; strata local stop {name} first")
            self.plan = plan.without(name)
            save(self.folder, self.plan)
            self._tell_forwarder()
        self._process(member).forget()

    def _note(self, *, served: bool) -> None:
        """Note whether the next `up` keeps the cluster."""
        with _locked(self.folder):
            plan = load(self.folder) or self.plan
            self.plan = replace(plan, served=served)
            if self.plan != plan:
                save(self.folder, self.plan)

    def _check_ports(self, members: Iterable[Member]) -> None:
        """Check that no other process has a port before a process is started on it."""
        for member in members:
            try:
                for port in self.plan.ports_of(member):
                    check_free(member.host, port, f"for {member.name}")
            except ListenError as error:
                raise CliError(str(error)) from None

    def _start(self, members: Iterable[Member]) -> None:
        begun: list[tuple[str, Process, int]] = []
        with _locked(self.folder):
            self._tell_forwarder()
            for member in members:
                process = self._process(member)
                if self.plan.cluster_tls and member.role != "forwarder":
                    give_certificate(self.folder, process.folder, member)
                arguments = self.plan.arguments(member, process.folder)
                begun.append((member.name, process, process.start(arguments)))
        for name, process, begin in begun:
            wait_until_ready(name, process, begin, self._timeouts.start_s)

    def _stop(self, members: Iterable[Member]) -> None:
        processes = [self._process(member) for member in members]
        for process in processes:
            process.signal(signal.SIGTERM)
            # A paused process handles no other signal until it resumes.
            process.signal(signal.SIGCONT)
        deadline_s = time.monotonic() + self._timeouts.stop_s
        for process in processes:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not process.wait_for({"dead", "stopped"}, left_s):
                process.signal(signal.SIGKILL, children=True)
                process.wait_for({"dead", "stopped"}, _KILL_TIMEOUT_S)
            process.forget()

    def _signal(self, names: Iterable[str], number: signal.Signals, wanted: set[State]) -> None:
        members = self._members(names)
        for member in members:
            if not self._process(member).signal(number, children=True):
                raise CliError(f"{member.name} does not run")
        for member in members:
            if not self._process(member).wait_for(wanted, _KILL_TIMEOUT_S):
                raise CliError(
                    f"{member.name} did not change its state within {_KILL_TIMEOUT_S:g} s"
                )

    def _tell_forwarder(self) -> None:
        """Write the file from which the forwarder knows its brokers."""
        for forwarder in self.plan.of("forwarder"):
            folder = self._process(forwarder).folder
            folder.mkdir(exist_ok=True)
            brokers = "".join(f"{broker.address}\n" for broker in self.plan.of("broker"))
            replace_text(folder / BROKERS, brokers)

    def _members(self, names: Iterable[str]) -> list[Member]:
        return [self.plan.member(name) for name in names]

    def _process(self, member: Member) -> Process:
        return Process(self.folder / member.name)

    def _state(self, member: Member) -> State:
        return self._process(member).state()[0]

    def _view(self, member: Member) -> ProcessView:
        state, pid = self._process(member).state()
        return ProcessView(
            name=member.name,
            role=member.role,
            pid=pid,
            address=member.address,
            state=state,
            node=_node_ids(self._process(member).folder, member.role),
            metrics=f"{member.host}:{member.metrics_port}" if member.metrics_port else "",
        )


def _node_ids(folder: Path, role: Role) -> str:
    """Return the ids in the data folder of a member, separated by commas; empty: there is none."""
    found = []
    for file in sorted([folder / IDENTITY_FILE, *folder.glob(f"*-*/{IDENTITY_FILE}")]):
        with suppress(OSError, ValueError):
            identity = json.loads(file.read_text(encoding="utf-8"))
            found.append(str(identity.get(f"{role}_node_id", "")))
    return ",".join(found)


def _runs(folder: Path, plan: ClusterPlan) -> bool:
    """Whether a process of a cluster runs."""
    states = (Process(folder / member.name).state()[0] for member in plan.members)
    return any(state in ("running", "paused") for state in states)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
