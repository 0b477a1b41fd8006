"""Checks of a machine that runs, or is to run, a process of a cluster. They change nothing.

The check of a disk writes a small file into the folder and deletes it again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal, NamedTuple

from strata_cli.readable import size
from strata_runtime.addresses import is_host

Verdict = Literal["ok", "note", "warning", "failed"]

WANTED_FILES = 65_536
NEEDED_FILES = 4_096
WANTED_MEMORY_BYTES = 2 << 30
NEEDED_MEMORY_BYTES = 1 << 30
WANTED_FREE_SHARE = 0.1
NEEDED_FREE_BYTES = 1 << 30
SLOW_SYNC_MS = 20.0
BAD_SYNC_MS = 200.0
WANTED_SKEW_MS = 100.0
BAD_SKEW_MS = 1_000.0
WANTED_CERTIFICATE_DAYS = 30

_MAX_PORT = 65_535
_SYNCS = 50
_SYNC_BYTES = 4_096
_SYNC_TIME_S = 2.0
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs")
_VOLATILE = ("tmpfs", "ramfs", "overlay")
_CLOCK_ERROR = 5
_UNLIMITED = resource.RLIM_INFINITY


class MachineCheck(NamedTuple):
    """The result of one check.

    Attributes:
        check: the part that was checked: clock, disk, files, memory, port, certificate, broker.
        name: the object: a folder, a port, a file; "": there is only one.
        verdict: failed: it does not work so; warning: it will hurt; note: good to know.
        detail: the measurement, in words.
        action: the way to correct it; "": nothing to do.
        values: the measurement, in numbers.
    """

    check: str
    name: str
    verdict: Verdict
    detail: str
    action: str = ""
    values: dict[str, float] = {}  # noqa: RUF012


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerClock:
    """A broker's time beside ours.

    Attributes:
        skew_ms: how far its clock is ahead of this one.
        error_ms: most by which that is wrong: half the time of the call.
    """

    skew_ms: float
    error_ms: float


def clock(broker: BrokerClock | None) -> Iterator[MachineCheck]:
    """Check that the kernel's clock is synchronised, and compare it with a broker's."""
    if not _is_synchronised():
        yield MachineCheck(
            "clock",
            "kernel",
            "warning",
            "the kernel says that nothing synchronises this clock",
            "run chrony or systemd-timesyncd; in a container, look at its host",
        )
    else:
        yield MachineCheck("clock", "kernel", "ok", "synchronised")
    if broker is None:
        return
    skew = abs(broker.skew_ms)
    certain = max(skew - broker.error_ms, 0.0)
    verdict: Verdict = "ok"
    if certain > WANTED_SKEW_MS:
        verdict = "failed" if certain > BAD_SKEW_MS else "warning"
    yield MachineCheck(
        "clock",
        "broker",
        verdict,
        f"the broker's clock is {broker.skew_ms:+.0f} ms away (± {broker.error_ms:.0f} ms)",
        "synchronise both clocks: delayed messages and leases follow them" if certain else "",
        {"skew_ms": round(broker.skew_ms, 1), "error_ms": round(broker.error_ms, 1)},
    )


def disk(folder: Path) -> Iterator[MachineCheck]:
    """Check the room of a folder's disk, its kind, and how long a sync takes there."""
    there = next((each for each in (folder, *folder.parents) if _is_folder(each)), Path("/"))
    facts = os.statvfs(there)
    free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    verdict: Verdict = "ok"
    if free < NEEDED_FREE_BYTES:
        verdict = "failed"
    elif total and free / total < WANTED_FREE_SHARE:
        verdict = "warning"
    share = free / total if total else 0.0
    yield MachineCheck(
        "disk",
        str(folder),
        verdict,
        f"{size(free)} of {size(total)} are free ({share:.0%})",
        "free some, enlarge the volume, or shorten the retention of topics",
        {"free_bytes": free, "total_bytes": total},
    )
    if facts.f_files and facts.f_favail < facts.f_files * 0.01:
        yield MachineCheck("disk", str(folder), "warning", f"{facts.f_favail} inodes are free")
    kind = file_system_of(there, Path("/proc/mounts"))
    if kind in _REMOTE:
        action = "use a disk of the machine or a block volume"
        yield MachineCheck(
            "disk", str(folder), "warning", f"{kind}: a sync crosses the network", action
        )
    elif kind in _VOLATILE:
        detail = f"{kind}: the data is lost with the container or the machine"
        yield MachineCheck("disk", str(folder), "warning", detail, "mount a volume there")
    if not os.access(there, os.W_OK):
        yield MachineCheck("disk", str(folder), "failed", "this user cannot write here", "chown it")
        return
    try:
        yield _syncs(folder, there)
    except OSError as error:
        # A disk that is full, or has no inode left, takes not even a small file.
        detail = f"a file cannot be written here: {(error.strerror or str(error)).lower()}"
        action = "free some, enlarge the volume, or look at the kernel's log"
        yield MachineCheck("disk", str(folder), "failed", detail, action)


def files(limit: int | None = None) -> MachineCheck:
    """Check how many files, and so connections, a process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == _UNLIMITED or soft >= WANTED_FILES:
        shown = "no limit" if soft == _UNLIMITED else f"{soft} open files"
        return MachineCheck("files", "", "ok", f"{shown} per process", "", {"limit": soft})
    verdict: Verdict = "failed" if soft < NEEDED_FILES else "warning"
    action = f"ulimit -n {WANTED_FILES}; LimitNOFILE={WANTED_FILES} in a systemd unit"
    detail = f"{soft} open files per process: each connection is one"
    return MachineCheck("files", "", verdict, detail, action, {"limit": soft})


def memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> MachineCheck:
    """Check the memory that is available, within the limit of the container."""
    available = _available(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None:
        available = min(available, max(limit - (used or 0), 0))
    verdict: Verdict = "ok"
    if available < WANTED_MEMORY_BYTES:
        verdict = "failed" if available < NEEDED_MEMORY_BYTES else "warning"
    detail = f"{size(available)} available"
    detail += f", limit of the container {size(limit)}" if limit is not None else ""
    action = "a storage node wants 2 GiB and more; see docs/performance.md"
    return MachineCheck("memory", "", verdict, detail, action, {"available_bytes": available})


def port(address: str) -> MachineCheck:
    """Check that nothing listens on HOST:PORT, so that a process can start there."""
    host, _, number = address.rpartition(":")
    is_number = number.isascii() and number.isdigit() and int(number) <= _MAX_PORT
    host = host.strip("[]") or "127.0.0.1"
    if not is_number or not is_host(host):
        action = "write HOST:PORT, or a port"
        return MachineCheck("port", address, "failed", "this is no address of a port", action)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(number)))
    except OSError as error:
        action = f"find the process: ss -ltnp 'sport = :{number}'"
        return MachineCheck(
            "port", address, "failed", (error.strerror or str(error)).lower(), action
        )
    return MachineCheck("port", address, "ok", "free")


def certificate(file: Path) -> MachineCheck:
    """Check until when a certificate is valid."""
    from strata_runtime.authority import facts_of
    from strata_runtime.errors import StrataError
    from strata_runtime.tls import read_certificate

    try:
        facts = facts_of(read_certificate(file))
    except (StrataError, OSError) as error:
        return MachineCheck("certificate", str(file), "failed", str(error), "correct the file")
    days = facts.days_left(datetime.now(UTC))
    verdict: Verdict = "ok"
    if days < WANTED_CERTIFICATE_DAYS:
        verdict = "failed" if days <= 0 else "warning"
    detail = f"valid for {days:.0f} more days" if days > 0 else f"it ended {-days:.0f} days ago"
    action = "replace it; the process reads it again at once"
    values = {"days_left": round(days, 1)}
    return MachineCheck("certificate", str(file), verdict, detail, action, values)


def file_system_of(folder: Path, mounts: Path) -> str:
    """Return the kind of file system that holds a folder; "": it is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    path = str(folder.resolve())
    for line in lines:
        _, place, found, *_ = [*line.split(" "), "", "", ""]
        place = place.replace("\\040", " ")
        is_above = path == place or path.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= len(best):
            best, kind = place, found
    return kind


def _is_folder(path: Path) -> bool:
    """Whether there is a folder that this user can see."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _syncs(folder: Path, there: Path) -> MachineCheck:
    took_ms = []
    end_s = time.monotonic() + _SYNC_TIME_S
    with NamedTemporaryFile(dir=there, prefix=".strata-doctor-") as file:
        for number in range(_SYNCS):
            os.pwrite(file.fileno(), bytes(_SYNC_BYTES), number * _SYNC_BYTES)
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            took_ms.append((time.perf_counter() - before) * 1_000)
            if time.monotonic() > end_s:
                break
    half, most = statistics.median(took_ms), _high(took_ms)
    verdict: Verdict = "ok"
    if most > SLOW_SYNC_MS:
        verdict = "failed" if half > BAD_SYNC_MS else "warning"
    return MachineCheck(
        "disk",
        str(folder),
        verdict,
        f"a sync of {size(_SYNC_BYTES)} takes {half:.1f} ms, of 99% {most:.1f} ms at most",
        "each send waits for a sync: use a faster disk, or move other load away",
        {"sync_p50_ms": round(half, 2), "sync_p99_ms": round(most, 2)},
    )


def _high(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(len(values) * 0.99))]


def _is_synchronised() -> bool:
    """Whether the kernel's clock is kept right; also if that cannot be asked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # A zeroed `struct timex` only asks; it is larger than the kernel's on any machine.
        return int(libc.adjtimex(ctypes.create_string_buffer(512))) != _CLOCK_ERROR
    except (OSError, AttributeError):
        return True


def _available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1_024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
