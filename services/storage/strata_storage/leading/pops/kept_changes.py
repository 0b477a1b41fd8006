"""Changes of leases that are decided and not proposed yet, and how entries are cut from them.

Invariants:
- Changes are proposed in the order in which they were decided, those of one set above all.
- A change leaves when its entry was proposed, and not before, whatever is raised meanwhile.
- A change that the log can never take does not stay: its set is read again from rows. Else no
  decision of the raft group could follow it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import cut_change, section_bytes
from strata_mq.leases import LeaseChange
from strata_state.rows import ConsumerKey
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.lease_set import LeaseSet, Section

# Bytes of one entry, about 7,700 rows. Leases that end in one turn may be many times more than a
# proposal may have (max_proposal_bytes, 8 MiB). An entry of this size is half of what a raft group
# applies, and sends to a follower, before other raft groups have their turn (rule 39), and it has
# far fewer sections than a LEASES command can count. A pop's change may be larger, for it is not
# cut: it has at most about 16,000 rows, 1.1 MB.
_ENTRY_BYTES = 512 * 1024


class KeptChanges:
    """See the module docstring.

    Args:
        propose: proposes sections in one entry; raises Refused, with OUTCOME_INVALID if the log
            can never take them.
        proposed: told each change, or part of one, whose entry was proposed.
        given_up: told the set of a change that the log can never take.
    """

    __slots__ = ("_given_up", "_propose", "_proposed", "_sections")

    def __init__(
        self,
        propose: Callable[[list[Section]], asyncio.Future[int]],
        *,
        proposed: Callable[[LeaseSet, LeaseChange], None],
        given_up: Callable[[LeaseSet], None],
    ) -> None:
        self._propose = propose
        self._proposed = proposed
        self._given_up = given_up
        self._sections: deque[Section] = deque()

    def __len__(self) -> int:
        return len(self._sections)

    def add(self, lease_set: LeaseSet, change: LeaseChange) -> None:
        """Take in a change, which comes after all others."""
        lease_set.in_flight += 1
        self._sections.append((lease_set, change))

    def forget(self, is_gone: Callable[[ConsumerKey], bool]) -> None:
        """Forget changes of sets whose rows are gone."""
        self._sections = deque(each for each in self._sections if not is_gone(each[0].key))

    def flush(self) -> asyncio.Future[int] | None:
        """Propose all changes, in several entries if they are many.

        Returns:
            The future of the last entry, which is committed after the others.

        Raises:
            Refused: not now; the changes that were not proposed stay. OUTCOME_OVERLOADED also if
                one can never be proposed.
        """
        future, max_bytes = None, _ENTRY_BYTES
        while self._sections:
            entry, rest = self._next_entry(max_bytes)
            try:
                future = self._propose(entry)
            except Refused as refused:
                if refused.outcome != pb.OUTCOME_INVALID:
                    raise
                max_bytes = self._smaller(entry, refused)
                continue
            self._take_off(entry, rest)
        return future

    def _next_entry(self, max_bytes: int) -> tuple[list[Section], LeaseChange | None]:
        """Return the first sections, and what is left of the last one's change."""
        entry: list[Section] = []
        room = max_bytes
        for lease_set, change in self._sections:
            size_bytes = section_bytes(change)
            if size_bytes > room:
                if entry:
                    break
                first, rest = cut_change(change, max_bytes)
                return [(lease_set, first)], rest
            entry.append((lease_set, change))
            room -= size_bytes
        return entry, None

    def _take_off(self, entry: list[Section], rest: LeaseChange | None) -> None:
        for _ in entry:
            self._sections.popleft()
        if rest is not None:
            lease_set = entry[-1][0]
            # The part that was proposed is one more change under way.
            self.add(lease_set, rest)
            self._sections.rotate(1)
        for lease_set, change in entry:
            self._proposed(lease_set, change)

    def _smaller(self, entry: list[Section], refused: Refused) -> int:
        """Return the size of the next try after the log refused an entry for what it is.

        Raises:
            Refused: it is one change that cannot be cut. It is given up, with those of its set
                that follow it.
        """
        size_bytes = sum(section_bytes(change) for _, change in entry)
        smaller_bytes = size_bytes // 2
        lease_set, change = entry[0]
        if len(entry) > 1 or cut_change(change, smaller_bytes)[1] is not None:
            return smaller_bytes
        stay = deque(each for each in self._sections if each[0] is not lease_set)
        lease_set.in_flight -= len(self._sections) - len(stay)
        self._sections = stay
        self._given_up(lease_set)
        reason = f"a change of leases cannot be written and was undone: {refused.reason}"
        raise Refused(pb.OUTCOME_OVERLOADED, reason) from refused
