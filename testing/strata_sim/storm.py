"""A seeded schedule of faults.

It never does more at once than the cluster promises to survive: one nameserver, one storage node
and one broker at a time, data destroyed on one machine only; power fails everywhere at once, but
then nothing else happens. The trace records every fault.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from strata_sim import faults
from strata_sim.cluster import SimCluster
from strata_sim.faults import Fault
from strata_sim.hosts import AnyHost, StorageHost


@dataclass(frozen=True, slots=True)
class StormOptions:
    """How bad it gets.

    Attributes:
        pause_s: longest time between two faults.
        length_s: shortest and longest time of a fault.
        destroy: whether data may be destroyed on one storage node.
    """

    pause_s: float = 3.0
    length_s: tuple[float, float] = (0.2, 5.0)
    destroy: bool = True


class Storm:
    """Faults of one run.

    Args:
        cluster: where.
        options: how bad.

    Attributes:
        begun: faults so far.
        kinds: how many of each kind.
    """

    def __init__(self, cluster: SimCluster, options: StormOptions | None = None) -> None:
        self._cluster = cluster
        self._options = options or StormOptions()
        self._chance = cluster.chance
        self._active: list[tuple[float, Fault]] = []
        self._may_destroy = self._options.destroy
        self.begun = 0
        self.kinds: Counter[str] = Counter()

    async def run(self, until_s: float) -> None:
        """Let faults happen until a time, then end them all."""
        next_s = self._cluster.now_s + self._chance.uniform(0, self._options.pause_s)
        while self._cluster.now_s < until_s:
            now_s = self._cluster.now_s
            for end_s, fault in list(self._active):
                if end_s <= now_s:
                    self._end(fault)
            if next_s <= now_s:
                next_s = now_s + self._chance.uniform(0, self._options.pause_s)
                chosen = self._choose()
                if chosen is not None:
                    self._begin(chosen)
            due_s = min([next_s, until_s, *(end_s for end_s, _ in self._active)])
            await asyncio.sleep(max(0.001, due_s - self._cluster.now_s))
        for _, fault in list(self._active):
            self._end(fault)

    def _begin(self, fault: Fault) -> None:
        self.begun += 1
        self.kinds[type(fault).__name__] += 1
        self._cluster.trace.note(f"fault: {fault}")
        if fault.destroys:
            self._may_destroy = False
        end_s = self._cluster.now_s + self._chance.uniform(*self._options.length_s)
        self._active.append((end_s, fault))
        fault.begin(self._cluster)

    def _end(self, fault: Fault) -> None:
        self._cluster.trace.note(f"fault ends: {fault}")
        self._active = [each for each in self._active if each[1] is not fault]
        fault.end(self._cluster)

    def _choose(self) -> Fault | None:
        """Return a fault that may happen now."""
        if any(fault.exclusive for _, fault in self._active):
            return None
        kind = self._chance.choices(
            ("host", "weather", "tier", "all"), weights=(12, 2, 2, 2 if not self._active else 0)
        )[0]
        if kind == "all":
            return faults.PowerLossOfAll(self._cluster.hosts)
        if kind == "weather":
            raging = any(isinstance(fault, faults.Weather) for _, fault in self._active)
            return None if raging else faults.Weather()
        if kind == "tier":
            bad = any(isinstance(fault, faults.TierTrouble) for _, fault in self._active)
            return None if bad else faults.TierTrouble(self._chance)
        return self._choose_for_host()

    def _choose_for_host(self) -> Fault | None:
        impaired = {name for _, fault in self._active for name in fault.victims}
        tiers = {host.kind for host in self._cluster.hosts if host.name in impaired}
        # So is a machine that does not run for another reason, or whose replica is to be replaced:
        # it lost rows, and their objects in the tier had gone before it was back.
        tiers |= {host.kind for host in self._members() if not host.serving or host.is_damaged}
        free = [host for host in self._members() if host.kind not in tiers]
        if not free:
            return None
        # Storage has most to lose.
        weights = [3 if host.kind == "storage" else 1 for host in free]
        host = self._chance.choices(free, weights)[0]
        return self._chance.choice(self._possible(host))(host, self._chance)

    def _possible(self, host: AnyHost) -> list[Callable[..., Fault]]:
        possible: list[Callable[..., Fault]] = list(faults.ANY_HOST)
        if host.kind != "broker":
            possible += faults.WITH_DATA
        if isinstance(host, StorageHost):
            possible += [
                kind
                for kind in faults.STORAGE
                if self._may_destroy or kind in (faults.FullDisk, faults.LoseRows)
            ]
        return possible

    def _members(self) -> list[AnyHost]:
        """Return hosts that take part: all but spare ones that were never started."""
        return [host for host in self._cluster.hosts if host.machine.lives]
