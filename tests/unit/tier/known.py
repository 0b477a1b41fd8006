"""The knowledge that a node has of a store, for the tests of drivers."""

from __future__ import annotations

from collections.abc import Sequence

from strata_tier.store.known import NothingKnown


class Known(NothingKnown):
    """The knowledge that a node would have.

    Args:
        mark: of the store that it used.
        keys: objects that must be there.
    """

    def __init__(self, mark: str = "", keys: Sequence[str] = ()) -> None:
        super().__init__()
        self.mark = mark
        self.named = keys

    async def keys(self) -> Sequence[str]:
        return self.named
