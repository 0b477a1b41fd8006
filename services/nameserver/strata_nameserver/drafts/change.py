"""How parts of the nameserver propose changes, whoever carries them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from strata_nameserver.state.draft import Draft

Result = TypeVar("Result")


class MakeChange(Protocol):
    """`metadata.Metadata.change`."""

    async def __call__(self, decide: Callable[[Draft], Result]) -> Result:
        """Decide on the speculative state, propose, wait until applied."""
