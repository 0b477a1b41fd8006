"""Leases of one leader's term, with the pops that wait for one of them to end."""

from __future__ import annotations

from typing import NamedTuple

from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.waiters import Waiters


class TermLeases(NamedTuple):
    """See the module docstring: whoever frees a message wakes those who wait for it."""

    sets: LeaseSets
    waiters: Waiters
