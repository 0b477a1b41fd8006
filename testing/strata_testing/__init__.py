"""What tests of every part share."""

from __future__ import annotations

from strata_testing.waiting import NeverHeld, NotYet, until, until_blocking

__all__ = ["NeverHeld", "NotYet", "until", "until_blocking"]
