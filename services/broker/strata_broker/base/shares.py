"""Shares of a limit: one client or connection cannot use up the limit of all (rule 34).

The owner of a share has a kind ("client", "connection") and a name. Names come from clients, so
only owners that hold something are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_runtime.metrics import Metrics

Owner = tuple[str, str]
"""(kind, name)."""

SHARING = ("client", "connection")
"""The kinds of owners of every call."""


def owners_of(client_id: str, peer: str) -> tuple[Owner, ...]:
    """Return the owners of a call's resources.

    Args:
        client_id: from the call's metadata; a client chooses it freely.
        peer: address of its connection, `host:port`.
    """
    return ("client", client_id), ("connection", peer)


class OwnerShares:
    """The use of one limit by each owner; used on the event loop only.

    Invariant: no owner holds more than the limit of its kind.

    Args:
        of: what is counted, label `of` of the metric.
        most: how much one owner of a kind may hold.
        metrics: where refusals are counted.
    """

    __slots__ = ("_held", "_most", "_of", "_refused")

    def __init__(self, of: str, most: Mapping[str, int], metrics: Metrics) -> None:
        self._of = of
        self._most = dict(most)
        self._held: dict[Owner, int] = {}
        self._refused = metrics.counter("strata_broker_share_refused_total")

    def __len__(self) -> int:
        """Return how many owners hold something."""
        return len(self._held)

    def try_take(self, owners: Sequence[Owner], n: int = 1) -> bool:
        """Take `n` for all owners of one thing, or nothing; return whether it was taken."""
        held = self._held
        for owner in owners:
            if held.get(owner, 0) + n > self._most[owner[0]]:
                self._refused.add(1, {"of": self._of, "by": owner[0]})
                return False
        for owner in owners:
            held[owner] = held.get(owner, 0) + n
        return True

    def give_back(self, owners: Sequence[Owner], n: int = 1) -> None:
        """Return what `try_take` took."""
        held = self._held
        for owner in owners:
            left = held.get(owner, 0) - n
            assert left >= 0, f"{owner} gives back more {self._of} than it holds"
            if left:
                held[owner] = left
            else:
                held.pop(owner, None)
