"""Faults of a cluster: each fault is begun, felt for a while, and healed.

Two faults may overlap. Those that damage what a node has stored never do: two damaged replicas of
three may rightly lose something.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cluster import ChaosCluster
from tests.e2e.cluster import ClusterError

SLOTS = 4_096
CHANGE_LIMIT_S = 120.0
BALLAST = "filled-by-chaos"
TOPICS = ("normal", "fifo", "delayed", "letters", "transactions", "sessions", "old")

Heal = Callable[[], None]
Begin = Callable[[ChaosCluster, random.Random], Heal]


@dataclass(frozen=True)
class Fault:
    """One kind of harm.

    Attributes:
        name: for people.
        begin: does it; what it returns ends it.
        alone: whether it damages stored data, so that no other fault may overlap.
        weight: how often it is chosen beside the others.
    """

    name: str
    begin: Begin
    alone: bool = False
    weight: int = 2


def kill(role: str, count: int = 1) -> Begin:
    """Kill processes of a role with -9."""

    def begin(cluster: ChaosCluster, chance: random.Random) -> Heal:
        names = _some(cluster, chance, role, count)
        cluster.local("kill", *names)
        return lambda: None

    return begin


def kill_leader(cluster: ChaosCluster, _: random.Random) -> Heal:
    """Kill the storage node that leads most raft groups."""
    cluster.local("kill", cluster.by_leaderships()[0])
    return lambda: None


def kill_all_but_the_forwarder(cluster: ChaosCluster, _: random.Random) -> Heal:
    """Kill everything that holds state or routes."""
    names = [name for role in ("broker", "storage", "nameserver") for name in cluster.names(role)]
    cluster.local("kill", *names)
    return lambda: None


def pause(role: str, count: int = 1) -> Begin:
    """Stop processes, as a long stall does."""

    def begin(cluster: ChaosCluster, chance: random.Random) -> Heal:
        names = _some(cluster, chance, role, count)
        cluster.local("pause", *names)

        def heal() -> None:
            for name in names:
                if cluster.state(name) == "paused":
                    cluster.local("resume", name)

        return heal

    return begin


def cut(role: str, count: int = 1) -> Begin:
    """Pull the cables of hosts."""

    def begin(cluster: ChaosCluster, chance: random.Random) -> Heal:
        hosts = [cluster.hosts[name] for name in _some(cluster, chance, role, count)]
        for host in hosts:
            host.cut()

        def heal() -> None:
            for host in hosts:
                host.mend()

        return heal

    return begin


def restart(role: str) -> Begin:
    """Stop a process in order and start it again."""

    def begin(cluster: ChaosCluster, chance: random.Random) -> Heal:
        [name] = _some(cluster, chance, role, 1)
        cluster.local("stop", name)
        return lambda: None

    return begin


def fill_disk(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Leave a storage node no room."""
    [name] = _some(cluster, chance, "storage", 1)
    ballast = cluster.data_dir / name / BALLAST
    room = shutil.disk_usage(ballast.parent).free - chance.choice([0, 1 << 20, 200 << 20])
    with suppress(OSError), ballast.open("wb") as file:
        for _ in range(max(0, room) // (1 << 20)):
            file.write(bytes(1 << 20))
    return lambda: ballast.unlink(missing_ok=True)


def lose_rows(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Kill a storage node and delete its RocksDB: the rows come back from the log."""
    [name] = _some(cluster, chance, "storage", 1)
    cluster.local("kill", name)
    shutil.rmtree(cluster.data_dir / name / "storage" / "state", ignore_errors=True)
    return lambda: None


def flip_a_bit(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Kill a storage node and flip a bit of what it has synced."""
    [name] = _some(cluster, chance, "storage", 1)
    cluster.local("kill", name)
    segments = sorted((cluster.data_dir / name / "storage").rglob("*.log"))
    if segments:
        _flip(chance.choice(segments), chance)
    return lambda: None


def move_a_queue(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Send a queue to another raft group."""
    groups = [group.health.raft_group for group in cluster.raft_groups()]
    topic = chance.choice(TOPICS)
    queue, to = str(chance.randrange(4)), str(chance.choice(groups))
    with suppress(ClusterError):
        cluster.strata("queue", "move", topic, queue, "--to", to, "--no-wait")
    return lambda: None


def move_slots(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Send slots to another raft group."""
    groups = [group.health.raft_group for group in cluster.raft_groups()]
    first, to = str(chance.randrange(SLOTS - 32)), str(chance.choice(groups))
    with suppress(ClusterError):
        cluster.strata("slot", "move", first, "32", "--to", to, "--no-wait")
    return lambda: None


def hand_over(cluster: ChaosCluster, chance: random.Random) -> Heal:
    """Hand leaderships over."""
    for group in cluster.raft_groups():
        if chance.random() < 0.5:
            with suppress(ClusterError):
                cluster.strata("leader", "transfer", str(group.health.raft_group))
    return lambda: None


def add_and_drain(cluster: ChaosCluster, _: random.Random) -> Heal:
    """Add a storage node; give its replicas away again and remove it."""
    name = cluster.add_storage()

    def heal() -> None:
        cluster.settle(CHANGE_LIMIT_S)
        node_id = cluster.node_id(name)
        cluster.strata("node", "drain", node_id)
        cluster.reaches(lambda: _is_empty(cluster, node_id), CHANGE_LIMIT_S)
        cluster.local("stop", name)
        cluster.reaches(lambda: _is_removed(cluster, node_id), CHANGE_LIMIT_S)
        cluster.remove(name)

    return heal


FAULTS = (
    Fault("kill a storage leader", kill_leader, weight=4),
    Fault("kill a storage node", kill("storage")),
    Fault("kill two storage nodes", kill("storage", 2)),
    Fault("kill all storage nodes", kill("storage", 3), weight=1),
    Fault("kill a broker", kill("broker")),
    Fault("kill a nameserver", kill("nameserver")),
    Fault("kill all nameservers", kill("nameserver", 3), weight=1),
    Fault("kill everything but the forwarder", kill_all_but_the_forwarder, weight=1),
    Fault("pause a storage node", pause("storage")),
    Fault("pause all storage nodes", pause("storage", 3), weight=1),
    Fault("pause a broker", pause("broker")),
    Fault("pause a nameserver", pause("nameserver")),
    Fault("cut a storage node off", cut("storage"), weight=3),
    Fault("cut two storage nodes off", cut("storage", 2), weight=1),
    Fault("cut a broker off", cut("broker")),
    Fault("cut a nameserver off", cut("nameserver")),
    Fault("restart a storage node", restart("storage")),
    Fault("restart a broker", restart("broker")),
    Fault("fill a disk", fill_disk),
    Fault("move a queue", move_a_queue),
    Fault("move slots", move_slots),
    Fault("hand leaderships over", hand_over),
    Fault("add and drain a storage node", add_and_drain, alone=True, weight=1),
    Fault("lose the rows of a storage node", lose_rows, alone=True),
    Fault("flip a bit", flip_a_bit, alone=True),
)


def _some(cluster: ChaosCluster, chance: random.Random, role: str, count: int) -> list[str]:
    names = cluster.names(role)
    return chance.sample(names, min(count, len(names)))


def _flip(file: Path, chance: random.Random) -> None:
    with file.open("r+b") as segment:
        size = segment.seek(0, 2)
        # Behind the last frame lies what was only preallocated: nothing is there to damage.
        place = chance.randrange(max(1, min(size, 4 << 20)))
        segment.seek(place)
        byte = segment.read(1) or b"\0"
        segment.seek(place)
        segment.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))


def _is_empty(cluster: ChaosCluster, node_id: str) -> bool:
    return not any(
        replica.node_id == node_id for group in cluster.raft_groups() for replica in group.replicas
    )


def _is_removed(cluster: ChaosCluster, node_id: str) -> bool:
    cluster.strata("node", "remove", node_id)
    return True
