"""How blocking work leaves the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class RunJob(Protocol):
    """Runs a blocking call in a thread and gives its result."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what `work` returns."""


@dataclass(frozen=True, slots=True)
class NodeThreads:
    """Threads of a storage node.

    Attributes:
        write: runs calls that belong to the log's writer thread.
        read: runs reads in the small pool of reading threads.
        flush: runs long work that must delay neither.
        disk: looks how full the disk is, and makes room: long work must not delay that either.
    """

    write: RunJob
    read: RunJob
    flush: RunJob
    disk: RunJob
