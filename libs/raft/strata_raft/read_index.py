"""Reads that wait for a majority to confirm the leader (thesis section 6.4, rule 12).

Each read is noted with the commit index at its arrival and a round; the round travels with
heartbeats. An answer confirms its round and all earlier ones: a replica that follows this leader at
a later round also followed it at an earlier round.
"""

from __future__ import annotations

from collections import deque

from strata_raft.events import ReadState
from strata_raft.quorum import is_quorum
from strata_raft.types import Configuration


class ReadIndex:
    """The unconfirmed reads of one leader."""

    __slots__ = ("_acknowledged", "_reads", "round")

    def __init__(self, replica_id: int) -> None:
        self.round = 0
        self._reads: deque[tuple[int, ReadState]] = deque()
        # The highest round each replica answered; the leader always supports itself.
        self._acknowledged: dict[int, int | None] = {replica_id: None}

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, context: int, commit_index: int) -> int:
        """Note a read; return the round whose confirmation it needs."""
        self.round += 1
        self._reads.append((self.round, ReadState(context, commit_index)))
        return self.round

    def acknowledge(self, replica_id: int, round_number: int) -> None:
        """Note that a replica still followed this leader at that round."""
        previous = self._acknowledged.get(replica_id, 0)
        if previous is not None and round_number > previous:
            self._acknowledged[replica_id] = round_number

    def take_confirmed(self, configuration: Configuration) -> tuple[ReadState, ...]:
        """Return the reads that a quorum has confirmed, oldest first."""
        confirmed: list[ReadState] = []
        while self._reads:
            wanted = self._reads[0][0]
            supporters = [
                replica_id
                for replica_id, answered in self._acknowledged.items()
                if answered is None or answered >= wanted
            ]
            if not is_quorum(configuration, supporters):
                break
            confirmed.append(self._reads.popleft()[1])
        return tuple(confirmed)
