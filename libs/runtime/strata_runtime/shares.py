"""Shares of a limit: no owner uses up what is for all (rule 34).

The owner of a share has a kind ("client", "address") and a name. Names come from clients, so only
owners that hold something are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Owner = tuple[str, str | int]
"""(kind, name)."""


class HeldShares:
    """The use of one limit by each owner; used on the event loop only.

    Invariant: no owner holds more than the limit of its kind.

    Args:
        of: what is counted, for errors.
        most: how much one owner of a kind may hold.
        on_full: told of an owner that has no room; what it raises is raised.
    """

    __slots__ = ("_held", "_most", "_of", "_on_full")

    def __init__(
        self, of: str, most: Mapping[str, int], on_full: Callable[[Owner], object]
    ) -> None:
        self._of = of
        self._most = dict(most)
        self._on_full = on_full
        self._held: dict[Owner, int] = {}

    def __len__(self) -> int:
        """Return how many owners hold something."""
        return len(self._held)

    def held(self, owner: Owner) -> int:
        """Return how much an owner holds."""
        return self._held.get(owner, 0)

    def try_take(self, owners: Sequence[Owner], n: int = 1) -> bool:
        """Take `n` for all owners of one thing, or nothing; return whether it was taken."""
        held = self._held
        for owner in owners:
            if held.get(owner, 0) + n > self._most[owner[0]]:
                self._on_full(owner)
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
