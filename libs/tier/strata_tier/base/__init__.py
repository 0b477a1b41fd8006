"""Errors and metrics of the tier."""

from strata_tier.base.errors import DamagedObjectError, TierError

__all__ = [
    "DamagedObjectError",
    "TierError",
]
