"""Invariants of a cluster at any time, one per file.

An invariant examines hosts and reports violations. The invariants of `EVERY_MESSAGE` examine the
sender of every message, since a replica's belief matters once it sends it; all invariants examine
every host twice a second.
"""

from __future__ import annotations

from strata_sim.invariants.commits import CommittedStay
from strata_sim.invariants.damage import DamageHasCause
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
        DamageHasCause(),
    ]
