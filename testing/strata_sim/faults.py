"""Faults of a simulated cluster, each a small class with a begin and an end.

A fault names its victims, so that a schedule (`storm.py`) never has more victims at once than the
cluster promises to survive. After its end the cluster must recover by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from strata_sim.cluster import SimCluster
from strata_sim.hosts import AnyHost, StorageHost
from strata_sim.object_store import BadStore
from strata_sim.options import TIER_URL
from strata_tier.store import MemoryBucket

_SKEW_WITHIN_MS = 200
_SKEW_BEYOND_MS = 5_000
_DRIFT = 0.02
_SLOW_DISK = 300.0


class Fault:
    """Something that goes wrong for a while.

    Attributes:
        victims: names of the hosts that may not work meanwhile.
        exclusive: nothing else may go wrong at the same time.
        destroys: data of one host are lost: at most one such fault in a run.
    """

    victims: tuple[str, ...] = ()
    exclusive = False
    destroys = False

    def begin(self, cluster: SimCluster) -> None:
        """Let it happen."""
        raise AssertionError("a kind of fault begins in its own way")

    def end(self, cluster: SimCluster) -> None:
        """Take it back."""

    def __str__(self) -> str:
        return f"{type(self).__name__} {' '.join(self.victims)}".strip()


class _OnHost(Fault):
    """A fault of one machine."""

    def __init__(self, host: AnyHost, chance: random.Random) -> None:
        self.host = host
        self.chance = chance
        self.victims = (host.name,)


class Kill(_OnHost):
    """kill -9, and a start later."""

    def begin(self, cluster: SimCluster) -> None:
        """Kill the process."""
        self.host.kill()

    def end(self, cluster: SimCluster) -> None:
        """Start it again."""
        _start(self.host)


class PowerLoss(_OnHost):
    """One machine loses power: unsynced pages are gone, there or torn."""

    def begin(self, cluster: SimCluster) -> None:
        """Switch it off."""
        self.host.lose_power()

    def end(self, cluster: SimCluster) -> None:
        """Switch it on."""
        _start(self.host)


class PowerLossOfAll(Fault):
    """Everything that keeps data loses power at the same moment."""

    exclusive = True

    def __init__(self, hosts: Sequence[AnyHost]) -> None:
        self.hosts = [host for host in hosts if host.kind != "broker"]
        self.victims = tuple(host.name for host in self.hosts)
        self._ran: list[AnyHost] = []

    def begin(self, cluster: SimCluster) -> None:
        """Switch all off."""
        self._ran = [host for host in self.hosts if host.machine.runs]
        for host in self._ran:
            host.lose_power()

    def end(self, cluster: SimCluster) -> None:
        """Switch them on."""
        for host in self._ran:
            _start(host)


class Pause(_OnHost):
    """SIGSTOP and SIGCONT."""

    def begin(self, cluster: SimCluster) -> None:
        """Stop the process where it is."""
        self.host.machine.pause()

    def end(self, cluster: SimCluster) -> None:
        """Let it go on."""
        self.host.machine.resume()


class Partition(_OnHost):
    """A machine and others do not reach each other: both ways, or one of them only."""

    def __init__(self, host: AnyHost, chance: random.Random) -> None:
        super().__init__(host, chance)
        self.way = chance.choice(("both", "in", "out"))
        self.to_all = chance.random() < 0.7
        self._cuts: list[tuple[str, str]] = []

    def begin(self, cluster: SimCluster) -> None:
        """Cut links."""
        others = [host.name for host in cluster.hosts if host is not self.host]
        others += cluster.client_names()
        if not self.to_all:
            others = self.chance.sample(others, self.chance.randint(1, len(others)))
        for other in others:
            if self.way in ("both", "out"):
                self._cuts.append((self.host.name, other))
            if self.way in ("both", "in"):
                self._cuts.append((other, self.host.name))
        for source, target in self._cuts:
            cluster.network.cut(source, target)

    def end(self, cluster: SimCluster) -> None:
        """Mend them."""
        for source, target in self._cuts:
            cluster.network.mend(source, target)

    def __str__(self) -> str:
        return f"{super().__str__()} {self.way} {'from all' if self.to_all else 'from some'}"


class Weather(Fault):
    """Every connection is bad: resets, delays, requests repeated and out of order."""

    def begin(self, cluster: SimCluster) -> None:
        """Worsen all links."""
        self._before = cluster.network.options
        cluster.network.options = replace(
            self._before,
            slow_share=0.2,
            slow_s=0.3,
            reset_share=0.02,
            repeat_share=0.05,
            reorder_share=0.1,
        )

    def end(self, cluster: SimCluster) -> None:
        """Make them good again."""
        cluster.network.options = self._before


class TierTrouble(Fault):
    """The object store is slow, refuses or loses answers, or all of it, or is gone for a while."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.kind = chance.choice(("slow", "bad", "gone"))

    def begin(self, cluster: SimCluster) -> None:
        """Worsen it for everybody."""
        slow_s = 1.0 if self.kind == "slow" else 0.05
        share = {"slow": 0.0, "bad": 0.3, "gone": 1.0}[self.kind]
        trouble = BadStore(
            TIER_URL, self._chance, slow_s, refused_share=share, unanswered_share=share / 2
        )
        cluster.buckets.setdefault(TIER_URL, MemoryBucket()).trouble = trouble

    def end(self, cluster: SimCluster) -> None:
        """Let it work again."""
        cluster.buckets[TIER_URL].trouble = None

    def __str__(self) -> str:
        return f"{super().__str__()} {self.kind}"


class ClockJump(_OnHost):
    """A machine's wall clock is wrong: by less than `max_clock_skew_ms`, or by far more."""

    def __init__(self, host: AnyHost, chance: random.Random) -> None:
        super().__init__(host, chance)
        limit_ms = chance.choice((_SKEW_WITHIN_MS, _SKEW_BEYOND_MS))
        self.jump_ms = chance.randint(-limit_ms, limit_ms)

    def begin(self, cluster: SimCluster) -> None:
        """Move it."""
        self.host.machine.clock.wall_offset_ms += self.jump_ms

    def end(self, cluster: SimCluster) -> None:
        """Move it back, as a time daemon does."""
        self.host.machine.clock.wall_offset_ms -= self.jump_ms

    def __str__(self) -> str:
        return f"{super().__str__()} {self.jump_ms:+} ms"


class ClockDrift(_OnHost):
    """A machine's clock runs too fast or too slow."""

    def __init__(self, host: AnyHost, chance: random.Random) -> None:
        super().__init__(host, chance)
        self.rate = 1 + chance.uniform(-_DRIFT, _DRIFT)

    def begin(self, cluster: SimCluster) -> None:
        """Change its rate from now on."""
        self.host.machine.clock.set_rate(self.rate)

    def end(self, cluster: SimCluster) -> None:
        """Let it run true; what it is off by stays, as small as it is."""
        self.host.machine.clock.set_rate(1.0)

    def __str__(self) -> str:
        return f"{super().__str__()} x{self.rate:.4f}"


class SlowDisk(_OnHost):
    """Work in threads, above all syncs, takes up to half a second."""

    def begin(self, cluster: SimCluster) -> None:
        """Slow it down, in this life of the process."""
        if self.host.machine.incarnation is not None:
            self.host.machine.incarnation.slowness = _SLOW_DISK

    def end(self, cluster: SimCluster) -> None:
        """Make it fast again."""
        if self.host.machine.incarnation is not None:
            self.host.machine.incarnation.slowness = 1.0


class FullDisk(_OnHost):
    """There is hardly any room for the log (rule 11)."""

    host: StorageHost

    def __init__(self, host: StorageHost, chance: random.Random) -> None:
        super().__init__(host, chance)
        self.left_bytes = chance.choice((0, 64 << 10, 1 << 20, 5 << 20))

    def begin(self, cluster: SimCluster) -> None:
        """Take the room away."""
        self.host.expects_failure = True
        self.host.disk.resize(self.host.disk.used_bytes() + self.left_bytes)

    def end(self, cluster: SimCluster) -> None:
        """Give it back."""
        self.host.disk.resize(cluster.options.disk_bytes)
        self.host.expects_failure = False

    def __str__(self) -> str:
        return f"{super().__str__()} {self.left_bytes} bytes left"


class BitFlip(_OnHost):
    """One bit of a log turns over while the other nodes are healthy."""

    destroys = True
    host: StorageHost

    def begin(self, cluster: SimCluster) -> None:
        """Turn it over; half of the time the process is dead meanwhile."""
        if self.chance.random() < 0.5:
            self.host.kill()
        self.host.may_be_damaged = True
        place = self.host.disk.rot(self.chance)
        cluster.trace.note(f"bit of {self.host.name} flipped in {place}")

    def end(self, cluster: SimCluster) -> None:
        """The bit stays as it is; the process runs."""
        _start(self.host)


class LoseRows(_OnHost):
    """A storage node's RocksDB folder is deleted: the same rows come back from its log (rule 6).

    They do not right after a snapshot was installed, before a checkpoint of it is in the log, or if
    the checkpoint names objects that the tier has replaced since: the replica says so and waits to
    be replaced.
    """

    host: StorageHost

    def begin(self, cluster: SimCluster) -> None:
        """Kill the process and delete its rows."""
        self.host.kill()
        self.host.may_be_damaged = True
        self.host.lose_rows()

    def end(self, cluster: SimCluster) -> None:
        """Start it on its log."""
        _start(self.host)


class EmptiedFolder(_OnHost):
    """A storage node's folder is emptied: it comes back as another node (rule 8)."""

    destroys = True
    host: StorageHost

    def begin(self, cluster: SimCluster) -> None:
        """Kill the process and delete everything."""
        self.host.kill()
        self.host.empty()

    def end(self, cluster: SimCluster) -> None:
        """Start a new node on the machine."""
        _start(self.host)


def _start(host: AnyHost) -> None:
    if not host.machine.runs:
        host.start()


OnHost = Callable[[AnyHost, random.Random], Fault]

ANY_HOST: tuple[OnHost, ...] = (Kill, Pause, Partition, ClockJump, ClockDrift, SlowDisk)
WITH_DATA: tuple[OnHost, ...] = (PowerLoss,)
STORAGE: tuple[Callable[[StorageHost, random.Random], Fault], ...] = (
    FullDisk,
    LoseRows,
    BitFlip,
    EmptiedFolder,
)
