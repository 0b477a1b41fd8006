"""Names of objects that a job outside was told to delete, for as long as it may do so.

Names follow from contents, so an upload or a compaction may write an object again that was given
up long ago. Committed while a sweep still deletes it, it would be lost: until the sweep's time is
over nothing is committed under its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata.storage.v1 import storage_pb2 as pb
from strata_runtime.clock import Clock
from strata_storage.base.errors import Refused
from strata_storage.tiering.options import OutsideOptions
from strata_tier.base import TierError


class LeasedKeys:
    """Keys of one leader in one term, which begins now.

    Args:
        clock: time.
        options: how many, and for how long.
    """

    def __init__(self, clock: Clock, options: OutsideOptions) -> None:
        self._clock = clock
        self._options = options
        # Key -> until when.
        self._until_s: dict[str, float] = {}
        self._inherited_until_s = clock.monotonic_s() + options.lease_ms / 1_000

    def __len__(self) -> int:
        return len(self._until_s)

    def lease(self, keys: Iterable[str]) -> None:
        """Keep names free from now on, for `OutsideOptions.lease_ms`.

        Raises:
            Refused: OUTCOME_OVERLOADED, there are too many of them; none was taken.
        """
        now_s = self._clock.monotonic_s()
        for key in [key for key, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[key]
        wanted = set(keys)
        if len(self._until_s.keys() | wanted) > self._options.leased_keys_max:
            raise Refused(
                pb.OUTCOME_OVERLOADED,
                f"jobs may delete {self._options.leased_keys_max} objects at once: try again later",
            )
        for key in wanted:
            self._until_s[key] = now_s + self._options.lease_ms / 1_000

    def may_be_inherited(self) -> bool:
        """Whether a sweep may still delete what an earlier leader told it, unknown to this one."""
        return self._clock.monotonic_s() < self._inherited_until_s

    def holds(self, key: str) -> bool:
        """Whether an object of this name may be deleted yet."""
        return self._until_s.get(key, 0.0) > self._clock.monotonic_s()

    def check_free(self, key: str) -> None:
        """Check that an object of this name may be committed.

        Raises:
            TierError: it may be deleted yet; to be written again later.
        """
        if self.holds(key):
            raise TierError(f"{key} is being deleted by a sweep; it is to be written again later")
