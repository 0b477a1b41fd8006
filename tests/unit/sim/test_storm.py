"""A storm stays within what a cluster promises to survive."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from strata_sim.cluster import SimCluster
from strata_sim.faults import Fault
from strata_sim.hosts import Host
from strata_sim.storm import Storm

SECONDS = 300


class Watched(Storm):
    """A storm whose faults are written down with the tiers that they impair."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self.active: list[Fault] = []
        self.kinds: Counter[str] = Counter()
        self.destroyed = 0

    def _begin(self, fault: Fault) -> None:
        if fault.exclusive:
            assert not self.active
        self.active.append(fault)
        self.kinds[type(fault).__name__] += 1
        self.destroyed += fault.destroys
        super()._begin(fault)
        victims = Counter(name[0] for each in self.active for name in each.victims)
        if not fault.exclusive:
            assert max(victims.values(), default=0) <= 1, victims

    def _end(self, fault: Fault) -> None:
        self.active.remove(fault)
        super()._end(fault)


async def sleep_for_ever(self: Host) -> None:
    """Be a process that serves and does nothing."""
    self.serving = True
    await asyncio.sleep(10 * SECONDS)


@pytest.mark.parametrize("seed", range(5))
def test_storm_keeps_its_promises(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One victim per tier at a time, data destroyed once, and everything ends with the storm."""
    print(f"seed {seed}")
    monkeypatch.setattr(Host, "_live", sleep_for_ever)
    cluster = SimCluster(seed)
    storm = Watched(cluster)

    async def scenario() -> None:
        await cluster.start()
        await storm.run(cluster.now_s + SECONDS)

    cluster.run(scenario())
    assert not storm.active
    assert storm.destroyed <= 1
    assert len(storm.kinds) >= 9
    assert not any(host.machine.paused for host in cluster.hosts)
    assert all(host.machine.runs for host in cluster.hosts if host.machine.lives)
    assert all(host.machine.clock.wall_offset_ms == 0 for host in cluster.hosts)
