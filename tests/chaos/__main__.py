"""`python -m tests.chaos --minutes 5 --seed 7`: faults at random, everything at work, a verdict.

Runs itself again in a network and a mount namespace of its own. Prints one JSON object; exit code
1 when something was lost, doubled, reordered, early, or did not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from strata_testing import NeverHeld
from tests.chaos import cluster as chaos_cluster
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.workload import Workload
from tests.e2e import networks
from tests.e2e.cluster import ClusterError
from tests.e2e.load import percentile

TWO_AT_ONCE_SHARE = 0.25
HOLD_S = (1.0, 8.0)
QUIET_S = (1.0, 4.0)
# The scrub reads all of a log in less (`scrub_bytes_per_s` of the cluster's configuration).
SCRUB_S = 15.0
MAX_SHOWN = 40


@dataclass
class Step:
    """One or two faults: when they began and were healed, and the longest waits of senders."""

    faults: list[str]
    began_s: float
    healed_s: float = 0.0
    longest_send_s: float = 0.0


@dataclass
class Verdict:
    """Outcome of a run."""

    seed: int
    minutes: float
    steps: list[Step] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return it as JSON."""
        kinds = Counter(name for step in self.steps for name in step.faults)
        return json.dumps(
            {
                "seed": self.seed,
                "minutes": self.minutes,
                "clean": not self.violations,
                "steps": len(self.steps),
                "faults": dict(kinds),
                "longest_send_s": round(max((s.longest_send_s for s in self.steps), default=0), 2),
                "counts": self.counts,
                "violations": self.violations[:MAX_SHOWN],
                "violation_count": len(self.violations),
            },
            indent=2,
        )


def choose(chance: random.Random) -> list[Fault]:
    """Return the faults of one step."""
    weights = [fault.weight for fault in FAULTS]
    [first] = chance.choices(FAULTS, weights)
    if first.alone or chance.random() > TWO_AT_ONCE_SHARE:
        return [first]
    others = [fault for fault in FAULTS if fault is not first and not fault.alone]
    return [first, chance.choice(others)]


async def step(cluster: ChaosCluster, chance: random.Random, workload: Workload) -> Step:
    """Do harm, let it be felt, heal it, and wait until the cluster is whole."""
    faults = choose(chance)
    done = Step([fault.name for fault in faults], time.monotonic())
    print(f"{time.strftime('%H:%M:%S')} {' and '.join(done.faults)}", file=sys.stderr, flush=True)
    heals = []
    for fault in faults:
        with suppress(ClusterError):  # while another fault is felt, not every command works
            heals.append(await asyncio.to_thread(fault.begin, cluster, chance))
    await asyncio.sleep(chance.uniform(*HOLD_S))
    for heal in heals:
        await asyncio.to_thread(heal)
    await asyncio.to_thread(cluster.healed)
    done.healed_s = time.monotonic()
    await asyncio.sleep(chance.uniform(*QUIET_S))
    done.longest_send_s = workload.load.gap_s(done.began_s, time.monotonic())
    return done


async def run(minutes: float, seed: int, folder: Path) -> Verdict:
    """Run everything; return what it showed."""
    verdict = Verdict(seed, minutes)
    chance = random.Random(seed)
    cluster = ChaosCluster(folder / "c")
    try:
        await asyncio.to_thread(cluster.up)
        await asyncio.to_thread(cluster.settle)
        workload = Workload(cluster, random.Random(seed))
        await asyncio.to_thread(workload.create)
        until_s = time.monotonic() + 60 * minutes
        async with workload.running() as wrong:
            while time.monotonic() < until_s:
                try:
                    verdict.steps.append(await step(cluster, chance, workload))
                except (ClusterError, NeverHeld) as error:
                    wrong.append(f"did not come back: {error}")
                    break
        verdict.violations, verdict.counts = wrong, workload.counts()
        latencies = workload.load.latencies_s(0, time.monotonic())
        verdict.counts["p99_ms"] = int(1_000 * percentile(latencies, 0.99))
        # Damage of the last step is found by the scrub, and mended from other replicas.
        await asyncio.sleep(SCRUB_S)
        await asyncio.to_thread(cluster.healed)
        verdict.violations += await asyncio.to_thread(damaged, cluster)
    finally:
        await asyncio.to_thread(cluster.close)
    return verdict


def damaged(cluster: ChaosCluster) -> list[str]:
    """Stop the storage nodes and read their logs; return those that are not whole."""
    wrong = []
    for name in cluster.names("storage"):
        cluster.local("stop", name)
        try:
            cluster.strata("log", "verify", str(cluster.data_dir / name))
        except ClusterError as error:
            wrong.append(f"log of {name}: {error}")
    return wrong


def main() -> int:
    """Parse, enter the namespaces, run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--folder", type=Path, help="where logs stay; default: a temporary one")
    arguments = parser.parse_args()
    if why := networks.missing() or chaos_cluster.missing():
        print(f"missing: {why}", file=sys.stderr)
        return 2
    if networks.OUTSIDE not in os.environ:
        command = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.chaos"]
        command += ["--seed", str(arguments.seed), "--minutes", str(arguments.minutes)]
        command += ["--folder", str(arguments.folder)] if arguments.folder else []
        environment = os.environ | {networks.OUTSIDE: networks.network()}
        return subprocess.run(command, env=environment, check=False).returncode
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="strata-chaos-"))
    print(f"seed {arguments.seed}, data and logs in {folder}", file=sys.stderr, flush=True)
    verdict = asyncio.run(run(arguments.minutes, arguments.seed, folder))
    print(verdict.text())
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
