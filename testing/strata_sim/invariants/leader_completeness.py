"""Leader completeness: a leader's log holds every entry that was committed in an earlier term.

Thesis 3.6.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_sim.invariants.violation import Violation


class LeaderCompleteness:
    """Remembers the terms of committed entries and looks them up in each new leader's log."""

    def __init__(self) -> None:
        # Index -> (term of the entry, lowest term in which somebody knew it to be committed).
        self._committed: dict[int, tuple[int, int]] = {}

    def committed(self, in_term: int, index: int, entry_term: int) -> None:
        """Note that a replica in this term knows that the entry is committed."""
        known = self._committed.get(index, (entry_term, in_term))
        self._committed[index] = (entry_term, min(known[1], in_term))

    def leader_elected(self, leader: int, term: int, term_at: Callable[[int], int | None]) -> None:
        """Check a new leader; `term_at` gives its log's term at an index, None if compacted.

        Raises:
            Violation: its log lacks a committed entry.
        """
        for index, (entry_term, in_term) in self._committed.items():
            if in_term >= term:
                continue
            has_term = term_at(index)
            if has_term is not None and has_term != entry_term:
                raise Violation(
                    f"leader completeness: leader {leader} of term {term} has term {has_term} at "
                    f"{index}, term {entry_term} is committed there"
                )
