"""Whole drivers under random faults: snapshots, membership, crashes, full disks."""

from __future__ import annotations

import os

import pytest

from strata_sim.driver_cluster import DriverCluster

SEEDS = [int(os.environ["STRATA_SIM_SEED"])] if os.environ.get("STRATA_SIM_SEED") else range(15)


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Every voter ends with the rows of all acknowledged entries, in order, whatever fails."""
    print(f"SEED={seed}")
    cluster = DriverCluster(seed)
    await cluster.run(1000)
    assert cluster.acked
