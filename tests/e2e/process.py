"""Memory and CPU time of a process and its descendants, read from /proc."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def process_tree(pid: int) -> list[int]:
    """Return the process and its descendants; one that ends meanwhile may be missing."""
    found = [pid]
    for known in found:
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{known}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants, shared pages counted twice."""
    pages = sum(int(text.split()[1]) for text in _files(pid, "statm"))
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time, user and system, of a process and its living descendants."""
    ticks = 0
    for text in _files(pid, "stat"):
        # The command name may hold blanks; the fields are counted from its closing bracket.
        fields = text.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _files(pid: int, name: str) -> Iterator[str]:
    for each in process_tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield Path(f"/proc/{each}/{name}").read_text()
