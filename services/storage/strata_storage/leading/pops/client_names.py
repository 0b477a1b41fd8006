"""Names of the clients that take messages, kept for traces.

A lease names its holder by a hash. The leader writes whose hash it is once a day, before anybody
asks: at the first pop of the day, with the names of other clients that came in the same moment.
Nobody waits for it; a name that is lost with the leader is written at the client's next pop.
"""

from __future__ import annotations

from strata_mq.layout import day_of
from strata_mq.traces import ClientName, encode_client_names
from strata_state.trace_rows import ClientNameRows
from strata_storage.leading.proposer import Proposer

# A quarter of a MiB at most.
_NAMES_PER_ENTRY = 1_000


class ClientNames:
    """Names that one leader in one term knows to be written, or is about to write.

    Args:
        rows: names that are written.
        proposer: where new ones go.
        max_known: clients remembered; beyond it they are looked up again.
    """

    __slots__ = ("_day", "_known", "_max_known", "_new", "_proposer", "_rows")

    def __init__(self, rows: ClientNameRows, proposer: Proposer, max_known: int) -> None:
        self._rows = rows
        self._proposer = proposer
        self._max_known = max_known
        self._day = day_of(proposer.now_ms())
        # Names of this day.
        self._known: set[int] = set()
        self._new: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def note(self, holder: int, client_id: str) -> None:
        """Take in who takes messages; called for every pop."""
        if holder in self._known or not client_id:
            return
        if len(self._known) >= self._max_known:
            self._known.clear()
            self._new.clear()
        self._known.add(holder)
        if self._rows.get(self._day, holder) is None:
            self._new[holder] = client_id

    def flush(self) -> None:
        """Propose the new names, some of them if there are many; called every moment.

        Raises:
            Refused: not now; it is tried again.
        """
        day = day_of(self._proposer.now_ms())
        if day != self._day:
            self._day = day
            self._known.clear()
            self._new.clear()
        if not self._new:
            return
        names = [
            ClientName(holder, client_id)
            for (holder, client_id), _ in zip(
                self._new.items(), range(_NAMES_PER_ENTRY), strict=False
            )
        ]
        self._proposer.propose((encode_client_names(self._proposer.now_ms(), names),))
        for holder, _ in names:
            del self._new[holder]
