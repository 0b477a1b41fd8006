"""How blocking work leaves the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class RunJob(Protocol):
    """Runs a blocking call in a thread and gives its result."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what `work` returns."""
