"""The port of an invariant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from strata_sim.hosts import AnyHost


class Invariant(Protocol):
    """Looks at hosts, remembers what it needs, tells violations."""

    # Whether it looks at the sender of every message too.
    EVERY_MESSAGE: bool

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """Look at hosts as they are now; yield violations."""
