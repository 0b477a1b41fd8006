"""Log matching: two logs that agree on (index, term) agree on everything up to there.

Thesis 3.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_raft import Entry
from strata_sim.invariants.violation import Violation


class LogMatching:
    """Remembers for each (index, term) the entry and the term before it.

    By induction it is enough to compare neighbours: same entry here and same predecessor.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Entry, int]] = {}

    def appended(self, replica_id: int, previous_term: int, entries: Sequence[Entry]) -> None:
        """Note entries that a replica has in its log, after one of `previous_term`.

        Raises:
            Violation: another log has something else there.
        """
        for entry in entries:
            here = (entry, previous_term)
            seen = self._seen.setdefault((entry.index, entry.term), here)
            if seen != here:
                raise Violation(
                    f"log matching: replica {replica_id} has {here} at {entry.index}, "
                    f"another has {seen}"
                )
            previous_term = entry.term
