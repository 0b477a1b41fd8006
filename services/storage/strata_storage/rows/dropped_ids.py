"""Ids of dropped topics and consumer groups of a raft group, which never come back (rule 17).

The nameserver counts ids up, and gives none twice. So they are kept as runs: of each kind there is
at most one more than there are things that live, or went before the raft group was there, however
many were dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from strata_state.ports import RowBatch
from strata_state.rows import TombstoneRows


class DroppedIds:
    """See the module docstring; a `Container` of (what, id), `what` as a `DropKind`.

    Args:
        rows: of the raft group.

    Attributes:
        additions: how often ids were added, or read from rows, as this process has seen it.
    """

    __slots__ = ("_firsts", "_lasts", "_rows", "additions")

    def __init__(self, rows: TombstoneRows) -> None:
        self._rows = rows
        self.additions = 0
        # By kind: first and last ids of runs, in order, with a gap between any two.
        self._firsts: dict[int, list[int]] = defaultdict(list)
        self._lasts: dict[int, list[int]] = defaultdict(list)
        self.reload()

    def reload(self) -> None:
        """Take in what the rows say, instead of what was known."""
        self.additions += 1
        self._firsts.clear()
        self._lasts.clear()
        for what, first_id, last_id in self._rows.all():
            firsts, lasts = self._firsts[what], self._lasts[what]
            if lasts and first_id <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last_id)
            else:
                firsts.append(first_id)
                lasts.append(last_id)

    def __contains__(self, dropped: object) -> bool:
        assert isinstance(dropped, tuple)
        what, dropped_id = dropped
        at = bisect_right(self._firsts[what], dropped_id) - 1
        return at >= 0 and bool(dropped_id <= self._lasts[what][at])

    def __len__(self) -> int:
        """Return the number of runs."""
        return sum(map(len, self._firsts.values()))

    def add(self, batch: RowBatch, what: int, dropped_id: int, group_time_ms: int) -> None:
        """Add an id, and write the row of its run.

        Args:
            batch: where to.
            what: a `DropKind`.
            dropped_id: of what is dropped.
            group_time_ms: of the drop.
        """
        if (what, dropped_id) in self:
            return
        self.additions += 1
        firsts, lasts = self._firsts[what], self._lasts[what]
        at = bisect_right(firsts, dropped_id)
        first_id = last_id = dropped_id
        begin, end = at, at
        if at and lasts[at - 1] == dropped_id - 1:
            begin, first_id = at - 1, firsts[at - 1]
        if at < len(firsts) and firsts[at] == dropped_id + 1:
            end, last_id = at + 1, lasts[at]
            self._rows.delete(batch, what, firsts[at])
        firsts[begin:end], lasts[begin:end] = [first_id], [last_id]
        self._rows.put(batch, what, first_id, last_id, group_time_ms=group_time_ms)
