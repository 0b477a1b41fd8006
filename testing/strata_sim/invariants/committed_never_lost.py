"""Committed never lost: an entry that one replica applied stays at its index at every replica.

State machine safety (thesis 3.6.3), and rule 1 of "What must always hold" in ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata_raft import Entry
from strata_sim.invariants.violation import Violation


class CommittedNeverLost:
    """Remembers the committed entry of every index, from whoever knew it first."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    def committed(self, replica_id: int, entries: Iterable[Entry]) -> None:
        """Note entries that a replica takes for committed.

        Raises:
            Violation: another entry is committed at that index.
        """
        for entry in entries:
            first = self.entries.setdefault(entry.index, entry)
            if first != entry:
                raise Violation(
                    f"committed never lost: replica {replica_id} commits {entry}, "
                    f"{first} is committed at that index"
                )

    def check_final(self, replica_id: int, applied: Iterable[Entry]) -> None:
        """Check what a replica has applied when all is quiet and everyone is up.

        Raises:
            Violation: an entry that was committed is not there.
        """
        by_index = {entry.index: entry for entry in applied}
        for index, entry in self.entries.items():
            if by_index.get(index) != entry:
                raise Violation(
                    f"committed never lost: replica {replica_id} ends with {by_index.get(index)} "
                    f"instead of {entry}"
                )
