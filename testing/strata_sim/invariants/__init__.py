"""What must hold inside a cluster at any time, one invariant per file.

An invariant looks at hosts and tells what it finds. Those of `EVERY_MESSAGE` look at the sender of
every message, since what a replica believes matters once it tells others; all look at everything
twice a second.
"""

from __future__ import annotations

from strata_sim.invariants.commits import CommittedStay
from strata_sim.invariants.elections import OneLeaderPerTerm
from strata_sim.invariants.group_rows import EqualRows
from strata_sim.invariants.metadata_rows import EqualMetadata
from strata_sim.invariants.port import Invariant
from strata_sim.invariants.queue_ends import EndsNeverFall
from strata_sim.invariants.slot_owners import OneOwnerPerSlot

__all__ = ["Invariant", "all_invariants"]


def all_invariants() -> list[Invariant]:
    """Return fresh invariants for one run."""
    return [
        OneLeaderPerTerm(),
        CommittedStay(),
        EqualRows(),
        EqualMetadata(),
        EndsNeverFall(),
        OneOwnerPerSlot(),
    ]
