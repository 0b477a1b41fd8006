"""Helpers that tests of every part share."""

from __future__ import annotations

from strata_testing.clock import ManualClock
from strata_testing.waiting import NeverHeld, NotYet, until, until_blocking

__all__ = ["ManualClock", "NeverHeld", "NotYet", "until", "until_blocking"]
