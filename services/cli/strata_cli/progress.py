"""How far long work is, on a terminal only; scripts and logs see nothing of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_PER_SECOND = 4
_WIDTH = 30


@dataclass(slots=True)
class WorkProgress:
    """How far a piece of work is; whoever does the work sets it.

    Attributes:
        title: the work, in one or two words.
        done: units that are done.
        total: all units; 0: nobody knows.
        detail: the present part of the work.
        since_s: monotonic time of the begin.
    """

    title: str
    done: int = 0
    total: int = 0
    detail: str = ""
    since_s: float = field(default_factory=time.monotonic)

    def set(self, done: int, total: int = 0, detail: str = "") -> None:
        """Say how far the work is."""
        self.done, self.total, self.detail = done, total, detail

    def texts(self) -> tuple[str, str]:
        """Return the part before the bar, and the part behind it."""
        count = f"{self.done} of {self.total}" if self.total else f"{self.done}"
        took_s = int(time.monotonic() - self.since_s)
        return self.title, "  ".join(filter(None, (count, self.detail, f"{took_s} s")))


@contextmanager
def progress(
    title: str, look: Callable[[], tuple[int, int, str]] | None = None
) -> Iterator[WorkProgress]:
    """Show how far the work inside is, while standard error is a terminal.

    Args:
        title: the work, in one or two words.
        look: tells (done, total, detail) whenever the line is drawn, from a thread; for work that
            does not say so itself.
    """
    shown = WorkProgress(title)
    if not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def drawn() -> Table:
        if look is not None:
            shown.set(*look())
        before, behind = shown.texts()
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(
            total=float(shown.total) if shown.total else None,
            completed=shown.done,
            width=_WIDTH,
            pulse=not shown.total,
        )
        line.add_row(before, bar, behind)
        return line

    console = Console(stderr=True)
    with Live(
        console=console, get_renderable=drawn, refresh_per_second=_PER_SECOND, transient=True
    ):
        yield shown
