"""Raft groups under random faults; `make sim SEED=n` replays one run."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from strata_sim.raft_cluster import Faults, RaftCluster

SEEDS = [int(os.environ["STRATA_SIM_SEED"])] if os.environ.get("STRATA_SIM_SEED") else range(30)


def storm(seed: int, membership: float) -> Faults:
    """Return faults between rare (leaders last) and frequent (few do), by the seed."""
    strength = 0.2 + seed % 5
    return Faults(
        crash=0.3 * strength,
        restart=1 + strength,
        partition=0.3 * strength,
        heal=0.3 * strength,
        disk_full=0.2 * strength,
        membership=membership,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("voters", [3, 5])
def test_invariants_hold_under_faults(seed: int, voters: int) -> None:
    """Loss, delay, duplication, reordering, partitions and crashes break no invariant."""
    print(f"SEED={seed}")
    cluster = RaftCluster(seed, voters=voters, faults=storm(seed, membership=0))
    cluster.run(6000)
    cluster.quiesce()
    assert cluster.proposed > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_while_snapshots_are_installed(seed: int) -> None:
    """An install that is cut, given up or crashed in leaves a slow replica, no forgetful one."""
    print(f"SEED={seed}")
    faults = replace(storm(seed, membership=2), compaction=6, abandon=2, crash=2, restart=3)
    cluster = RaftCluster(seed, voters=3, spares=2, faults=faults)
    cluster.run(4000)
    cluster.quiesce()


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_while_the_membership_changes(seed: int) -> None:
    """Joint changes between one and five voters, with learners, lose nothing either (rule 12)."""
    print(f"SEED={seed}")
    cluster = RaftCluster(seed, voters=3, spares=2, faults=storm(seed, membership=2))
    cluster.run(6000)
    cluster.quiesce()
