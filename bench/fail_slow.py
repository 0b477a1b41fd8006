"""Makes storage nodes of a real cluster slow and measures when the nameserver notices.

    python bench/fail_slow.py [--learn-s S] [--fault-s S] [--seed N] [--only KIND]

Four storage nodes get steady sends. After a time without faults, in which no node may be called
slow, each kind of fault is put on another node, one after the other:

- disk: every fdatasync of the log's thread is delayed (strace);
- core: the process gets only a share of a core (the cpu controller of cgroup v1);
- network: every write of the event loop to a socket is delayed (strace).

It needs root, strace and cgroup v1. It prints one JSON object: for each fault the nodes that were
called slow and when, the node's leaderships and the sends' 99th percentile; and over all faults
precision and recall.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.client import Client, RefusedError
from tests.e2e.cluster import Cluster

TOPICS = [f"slow-{number}" for number in range(24)]
BODY = b"x" * 1_000
PAUSE_S = 0.2
LOOK_S = 3.0
# As long as a node stays called slow after its last bad window, and a little more.
RECOVER_S = 100.0
CPU_CONTROLLER = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000


@dataclass
class Load:
    """Steady sends to all topics, and how long they took."""

    endpoint: str
    took_ms: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Send until cancelled."""
        async with Client(self.endpoint) as client, asyncio.TaskGroup() as tasks:
            for topic in TOPICS:
                tasks.create_task(self._send(client, topic))

    def p99_ms(self) -> float:
        """Return the 99th percentile of the sends since the last call."""
        taken, self.took_ms = sorted(self.took_ms), []
        return round(taken[len(taken) * 99 // 100], 1) if taken else 0.0

    async def _send(self, client: Client, topic: str) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await client.send(topic, [(client.new_message_id(), BODY)])
            except (grpc.aio.AioRpcError, RefusedError):
                await asyncio.sleep(0.05)
                continue
            self.took_ms.append((time.monotonic() - began_s) * 1_000)
            await asyncio.sleep(PAUSE_S)


def thread_that_syncs(pid: int) -> int:
    """Return the thread of a process that calls fdatasync."""
    command = ["timeout", "-s", "INT", "2", "strace", "-f", "-e", "trace=fdatasync"]
    seen = subprocess.run(
        [*command, "-p", str(pid)], capture_output=True, text=True, check=False
    ).stderr
    found = re.search(r"\[pid +(\d+)\] fdatasync", seen)
    if found is None:
        raise SystemExit(f"no thread of {pid} calls fdatasync:\n{seen[-500:]}")
    return int(found.group(1))


@contextmanager
def delayed(thread: int, calls: str, delay_ms: float) -> Iterator[None]:
    """Let system calls of one thread take longer."""
    inject = f"inject={calls}:delay_exit={round(delay_ms * 1_000)}"
    strace = subprocess.Popen(
        ["strace", "-e", f"trace={calls}", "-e", inject, "-o", "/dev/null", "-p", str(thread)],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait()


@contextmanager
def throttled_disk(pid: int, rng: random.Random) -> Iterator[str]:
    """The log's fdatasync takes 20 to 60 ms longer."""
    delay_ms = rng.uniform(20, 60)
    with delayed(thread_that_syncs(pid), "fdatasync", delay_ms):
        yield f"fdatasync + {delay_ms:.0f} ms"


@contextmanager
def delayed_network(pid: int, rng: random.Random) -> Iterator[str]:
    """Writes of the event loop to sockets leave 10 to 30 ms later."""
    delay_ms = rng.uniform(10, 30)
    with delayed(pid, "write,writev,sendmsg,sendto", delay_ms):
        yield f"socket writes + {delay_ms:.0f} ms"


@contextmanager
def busy_core(pid: int, rng: random.Random) -> Iterator[str]:
    """The process gets 4 to 10 % of a core."""
    share = rng.uniform(0.04, 0.10)
    group = CPU_CONTROLLER / f"strata-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
        (group / "cgroup.procs").write_text(str(pid))
        yield f"{share * 100:.0f} % of a core"
    finally:
        (CPU_CONTROLLER / "cgroup.procs").write_text(str(pid))
        group.rmdir()


FAULTS: dict[str, Callable[[int, random.Random], Any]] = {
    "disk": throttled_disk,
    "core": busy_core,
    "network": delayed_network,
}


class Trial:
    """A cluster under load.

    Args:
        cluster: which runs and is settled.
        load: its sends.
    """

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self._cluster = cluster
        self._load = load
        self._pids = {each["name"]: each["pid"] for each in cluster.local("status")}
        self._names = cluster.names_of_nodes()

    async def watch(self, seconds: float, until: str = "") -> dict[str, tuple[float, str]]:
        """Return which nodes are called slow within a time: after how long, and why.

        Args:
            seconds: how long to look.
            until: stop when this one is called slow.
        """
        began_s = time.monotonic()
        found: dict[str, tuple[float, str]] = {}
        while (now_s := time.monotonic() - began_s) < seconds and until not in found:
            shown = await asyncio.to_thread(self._cluster.strata, "node", "list")
            for node in shown["nodes"]:
                name = self._names.get(node["node"], node["node"])
                if node["slow"] and name not in found:
                    found[name] = (round(now_s, 1), node["slow_reason"])
            await asyncio.sleep(LOOK_S)
        return found

    async def inject(
        self, kind: str, name: str, fault_s: float, rng: random.Random
    ) -> dict[str, Any]:
        """Put a fault on a node and take it off again; return what was seen."""
        before = await self._state(name)
        with ExitStack() as stack:
            what = await asyncio.to_thread(stack.enter_context, FAULTS[kind](self._pids[name], rng))
            found = await self.watch(fault_s, until=name)
            during = await self._state(name)
            # Its leaders have time to leave.
            await asyncio.sleep(10)
            self._load.p99_ms()
            await asyncio.sleep(20)
            after = await self._state(name)
        return {
            "fault": kind,
            "strength": what,
            "node": name,
            "found_after_s": found[name][0] if name in found else None,
            "reason": found[name][1] if name in found else "",
            "falsely": sorted(found.keys() - {name}),
            "leads": {"before": before[0], "found": during[0], "after": after[0]},
            "p99_ms": {"before": before[1], "until_found": during[1], "after": after[1]},
        }

    async def _state(self, name: str) -> tuple[int, float]:
        """Return how many raft groups a node leads, and the sends' p99 since the last look."""
        groups = await asyncio.to_thread(self._cluster.raft_groups)
        led = sum(self._names.get(each.health.leader_node_id) == name for each in groups)
        return led, self._load.p99_ms()


async def measure(cluster: Cluster, given: argparse.Namespace) -> dict[str, Any]:
    """Send steadily and return what `trials` saw."""
    load = Load(cluster.endpoint)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(load.run())
        figures = await trials(Trial(cluster, load), load, cluster.names("storage"), given)
        sending.cancel()
    return figures


async def trials(
    trial: Trial, load: Load, names: list[str], given: argparse.Namespace
) -> dict[str, Any]:
    """Learn, inject every kind of fault, and sum up."""
    rng = random.Random(given.seed)
    healthy = await trial.watch(given.learn_s)
    rows: list[dict[str, Any]] = []
    kinds, places = rng.sample(sorted(FAULTS), len(FAULTS)), rng.sample(names, len(FAULTS))
    if given.only:
        kinds, places = [given.only], places[:1]
    for kind, name in zip(kinds, places, strict=True):
        if rows:
            await asyncio.sleep(RECOVER_S)
        load.p99_ms()
        await asyncio.sleep(10)
        rows.append(await trial.inject(kind, name, given.fault_s, rng))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    found = sum(row["found_after_s"] is not None for row in rows)
    alarms = found + sum(len(row["falsely"]) for row in rows) + len(healthy)
    return {
        "seed": given.seed,
        "healthy_s": given.learn_s,
        "healthy_alarms": healthy,
        "faults": rows,
        "recall": found / len(rows),
        "precision": found / alarms if alarms else None,
    }


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    # Sixty windows must count, of a little more than ten seconds each, and old ones fade.
    parser.add_argument("--learn-s", type=float, default=720.0, help="without faults, at first")
    parser.add_argument("--fault-s", type=float, default=150.0, help="a fault lasts no longer")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", choices=sorted(FAULTS), help="this kind of fault alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "c", nameservers=1, storage=4, brokers=1)
        cluster.up()
        try:
            cluster.settle()
            for topic in TOPICS:
                cluster.create_topic(topic, "--queues", "1")
            print(json.dumps(asyncio.run(measure(cluster, given))))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
