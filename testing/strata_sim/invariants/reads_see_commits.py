"""Reads see commits: a confirmed read's index covers all entries committed when it was requested.

Thesis 6.4, rule 3. A deposed leader that answers from its own state would break this.
"""

from __future__ import annotations

from collections.abc import Hashable

from strata_sim.invariants.violation import Violation


class ReadsSeeCommits:
    """Knows the highest committed index and what it was when each read began."""

    def __init__(self) -> None:
        self.commit_index = 0
        self._began: dict[Hashable, int] = {}

    def committed(self, index: int) -> None:
        """Note that somebody knows this index to be committed."""
        self.commit_index = max(self.commit_index, index)

    def asked(self, read: Hashable) -> None:
        """Note the start of a read."""
        self._began[read] = self.commit_index

    def answered(self, read: Hashable, index: int) -> None:
        """Check the index that the read got.

        Raises:
            Violation: the read could miss an entry.
        """
        if index < self._began[read]:
            raise Violation(
                f"reads see commits: read {read} was confirmed at {index}, "
                f"{self._began[read]} was committed when it was asked"
            )
