"""Errors of the tier's own data; errors of a store are in `ports`."""

from __future__ import annotations

from strata_runtime.errors import StrataError


class TierError(StrataError):
    """The tier cannot do what was asked; the message says which object and why."""


class DamagedObjectError(TierError):
    """Bytes of an object are not what was written: they are never served.

    Attributes:
        key: the object.
        reason: which part, and what is wrong with it.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class NotTieredError(TierError):
    """No committed range holds the offset: it is below the first one or not uploaded yet."""


class TierGapError(TierError):
    """The tier state has a hole where messages must be: an error, never the end of a queue."""
