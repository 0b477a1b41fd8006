"""Election safety: a server votes for one candidate per term, a term has at most one leader.

Thesis 3.2 and figure 3.2. The second property follows from the first.
"""

from __future__ import annotations

from collections.abc import Hashable

from strata_sim.invariants.violation import Violation


class ElectionSafety:
    """Remembers every vote that left a server, across its restarts, and every leader."""

    def __init__(self) -> None:
        self._votes: dict[tuple[Hashable, int], Hashable] = {}
        self._leaders: dict[int, Hashable] = {}

    def vote_granted(self, term: int, voter: Hashable, candidate: Hashable) -> None:
        """Note a vote (not a pre-vote).

        Raises:
            Violation: the voter gave its vote of this term to another candidate before.
        """
        first = self._votes.setdefault((voter, term), candidate)
        if first != candidate:
            raise Violation(
                f"election safety: {voter} voted twice in term {term}: "
                f"for {first}, then for {candidate}"
            )

    def leader_elected(self, term: int, leader: Hashable) -> None:
        """Note a leader.

        Raises:
            Violation: the term has another leader.
        """
        first = self._leaders.setdefault(term, leader)
        if first != leader:
            raise Violation(f"election safety: term {term} has leaders {first} and {leader}")
