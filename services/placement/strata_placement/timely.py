"""The metric windows that count: those of the time that is looked at, with a length that can be.

Nodes write times by their own clocks. One clock that is wrong would stretch the time of all nodes:
where it says that a window was, all others have none, and what is absent counts as zeros. Batches
that are left out are counted, so that whoever reads can say so in one line.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from strata_runtime.windows import WindowBatch

MAX_LENGTH_MS = 3_600_000
"""Longest window that counts: loads are told by the hour (`load_table`), and
`observability.window_ms` ends at ten minutes."""

# Midnight UTC at which the year 10,000 begins: no date and no folder can name what is later.
_END_OF_DATES_MS = 253_402_300_800_000
# Nodes and reasons that are told one by one; a cluster with more of them has one cause.
_MAX_TOLD = 5


class Flaw(StrEnum):
    """Why a batch of windows does not count; the text is the end of a sentence."""

    UNREADABLE = "cannot be read by this version"
    IMPOSSIBLE = "have a time or a length that cannot be"
    EARLY = "begin before the time that is read: is that node's clock behind?"
    LATE = "begin after now: is that node's clock ahead, or this machine's behind?"


class LeftOut:
    """Counts batches that do not count, by node and flaw; bounded in size.

    Attributes:
        total: how many there were.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[tuple[str, Flaw]] = Counter()

    def add(self, flaw: Flaw, node_id: str = "") -> None:
        """Count a batch; `node_id` empty: nobody knows whose it was."""
        self.total += 1
        if (node_id, flaw) in self._counts or len(self._counts) < _MAX_TOLD:
            self._counts[node_id, flaw] += 1

    def __str__(self) -> str:
        """Return one line for people; empty: every batch counts."""
        if not self.total:
            return ""
        parts = [
            f"{count} of {node_id} {flaw}" if node_id else f"{count} {flaw}"
            for (node_id, flaw), count in self._counts.items()
        ]
        rest = self.total - self._counts.total()
        parts += [f"{rest} of other nodes"] if rest else []
        return f"batches of metric windows that do not count: {'; '.join(parts)}"


class TimelyWindows:
    """Tells which batches belong to a time that ends now.

    A batch may reach over each end by its own length: it lies within [begin - window, now +
    window].

    Args:
        begin_ms: wall time from which on windows are wanted.
        now_ms: wall time.
        left_out: counts what does not belong.
    """

    def __init__(self, begin_ms: int, now_ms: int, left_out: LeftOut) -> None:
        self._begin_ms = begin_ms
        self._now_ms = now_ms
        self._left_out = left_out

    def take(self, batch: WindowBatch) -> bool:
        """Return whether a batch counts; one that does not is counted as left out."""
        flaw = self._flaw_of(batch)
        if flaw is not None:
            self._left_out.add(flaw, batch.node_id)
        return flaw is None

    def _flaw_of(self, batch: WindowBatch) -> Flaw | None:
        if not is_possible(batch):
            return Flaw.IMPOSSIBLE
        if batch.start_ms < self._begin_ms - batch.length_ms:
            return Flaw.EARLY
        return Flaw.LATE if batch.start_ms > self._now_ms else None


def is_possible(batch: WindowBatch) -> bool:
    """Whether a batch has a length, and a time with a date."""
    is_length = 0 < batch.length_ms <= MAX_LENGTH_MS
    return is_length and batch.start_ms + batch.length_ms <= _END_OF_DATES_MS
