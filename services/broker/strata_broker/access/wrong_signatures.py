"""Slows down whoever guesses keys: an address with many wrong signatures is not hashed for a while.

Wrong signatures are counted for an address and an access key, so that one misconfigured program
does not lock out others behind the same address; the address as a whole may be wrong some times
more often. The first 64 bits of an IPv6 address count as the address: one caller has all others.
Names come from callers, so the table is bounded, and forgets the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict

from strata_edge.addresses import network_of
from strata_runtime.clock import Clock

_ALL_KEYS = ""
ADDRESS_FACTOR = 10
"""How many times more wrong signatures an address may send than one access key at it."""


class WrongSignatures:
    """See the module docstring. Used on the event loop only.

    Args:
        most: wrong signatures of an access key at an address within a window.
        window_s: length of a window; it begins with the first wrong signature.
        max_entries: most pairs of address and access key to remember.
        clock: monotonic time.
    """

    def __init__(self, most: int, window_s: float, clock: Clock, *, max_entries: int) -> None:
        self._most = most
        self._window_s = window_s
        self._max_entries = max_entries
        self._clock = clock
        # (address, access key) -> (number, end of the window)
        self._counts: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def is_blocked(self, address: str, access_key: str) -> bool:
        """Whether a signature is refused without a look at it."""
        if not self._counts:
            return False
        address = network_of(address)
        return (
            self._count((address, access_key)) >= self._most
            or self._count((address, _ALL_KEYS)) >= self._most * ADDRESS_FACTOR
        )

    def add(self, address: str, access_key: str) -> None:
        """Count a wrong signature."""
        address = network_of(address)
        for key in ((address, access_key), (address, _ALL_KEYS)):
            count = self._count(key)
            if count:
                self._counts[key] = (count + 1, self._counts[key][1])
                continue
            while len(self._counts) >= self._max_entries:
                self._counts.popitem(last=False)
            self._counts[key] = (1, self._clock.monotonic_s() + self._window_s)

    def _count(self, key: tuple[str, str]) -> int:
        """Return the number of a window that is not over."""
        count, ends_s = self._counts.get(key, (0, 0.0))
        if count and self._clock.monotonic_s() >= ends_s:
            del self._counts[key]
            return 0
        return count
