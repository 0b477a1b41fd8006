"""Applied entries stay: the same at every replica, and in the log of every later leader.

State machine safety, log matching at committed indexes, and leader completeness (thesis figure
3.2). Entries are distinguished by their term; the rows show that their payloads are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from strata_multiraft.replica import Replica
from strata_raft import Compacted, Role
from strata_sim.hosts import AnyHost


class CommittedStay:
    """Remembers the term of every index of each raft group that a replica applied."""

    EVERY_MESSAGE = True

    def __init__(self) -> None:
        self._terms: dict[int, dict[int, int]] = defaultdict(dict)
        # (raft group, replica id) -> applied index up to which was looked at.
        self._seen: dict[tuple[int, int], int] = {}
        self._leaders: set[tuple[int, int, int]] = set()

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            for raft_group, replica in host.replicas().items():
                yield from self._look_at_commits(raft_group, replica)
                if replica.role is Role.LEADER:
                    yield from self._look_at_leader(raft_group, replica)

    def _look_at_commits(self, raft_group: int, replica: Replica) -> Iterator[str]:
        key = (raft_group, replica.replica_id)
        # An applied entry is committed, and durable here: the stored entry is the one that counts.
        applied, seen = replica.applied_index, self._seen.get(key, 0)
        if applied == seen:
            return
        # After a crash less may be applied: it is looked at again.
        self._seen[key] = applied
        terms = self._terms[raft_group]
        for index in range(max(seen + 1, replica.first_index), applied + 1):
            term = _term(replica, index)
            if term is None:
                continue
            known = terms.setdefault(index, term)
            if known != term:
                yield (
                    f"raft group {raft_group}: entry {index} was committed in term {known}, "
                    f"replica {replica.replica_id} has it in term {term}"
                )

    def _look_at_leader(self, raft_group: int, replica: Replica) -> Iterator[str]:
        key = (raft_group, replica.replica_id, replica.term)
        if key in self._leaders:
            return
        self._leaders.add(key)
        terms = self._terms[raft_group]
        newest = max(terms, default=0)
        if newest and terms[newest] < replica.term and replica.last_index < newest:
            yield (
                f"raft group {raft_group}: the leader of term {replica.term}, replica "
                f"{replica.replica_id}, ends at {replica.last_index}; {newest} was committed"
            )


def _term(replica: Replica, index: int) -> int | None:
    try:
        return replica.stored.term(index)
    except Compacted:
        return None
