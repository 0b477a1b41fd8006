"""Whole clusters under faults: nameservers, storage nodes, brokers and clients in virtual time.

`STRATA_SIM_SEED=n` replays one seed and prints every event; `STRATA_SIM_SEEDS=n` runs that many,
`STRATA_SIM_FIRST_SEED` says from where on. Seeds run in two processes of their own, whose names
hash the same each time: else a seed would not be the same run twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.mutations import MUTATIONS

SEED = os.environ.get("STRATA_SIM_SEED")
SEEDS = int(os.environ.get("STRATA_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("STRATA_SIM_FIRST_SEED", "1"))
PROCESSES = 2
EVENTS_SHOWN = 60
# Far more than a seed takes: a guard against runs that never end, also on a busy machine.
SECONDS_PER_SEED = 300
HERE = Path(__file__).parent
# Work that every run must have done, and what a tenth of them must.
EACH_SEED = (
    *("checkpoints", "freed_segments", "relocated_bytes", "dead_letters", "resolved"),
    *("bulk", "deliver", "recall", "commit", "rollback", "poison"),
    *("uploaded_bytes", "table_writes", "table_reads"),
)
SOME_SEED = (
    *("snapshots", "queue_moves", "slot_moves", "read_from_tier_bytes"),
    *("PowerLossOfAll", "LoseRows", "TierTrouble"),
    *("UpdateTopic", "ClockJump", "ClockDrift", "EmptiedFolder", "BitFlip"),
)
ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}

needs_all_seeds = pytest.mark.skipif(SEED is not None, reason="STRATA_SIM_SEED replays one run")


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a process that runs seeds."""
    return subprocess.Popen(
        [sys.executable, "-m", "strata_sim", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def verdicts_of(process: subprocess.Popen[str], seeds: int) -> list[dict[str, Any]]:
    """Wait for a process and return its verdicts; the other lines are shown."""
    with process:
        try:
            output, _ = process.communicate(timeout=seeds * SECONDS_PER_SEED)
        finally:
            process.kill()
    verdicts = []
    for line in output.splitlines():
        if line.startswith("{"):
            verdicts.append(json.loads(line))
        else:
            print(line)
    assert len(verdicts) == seeds, "the process ended early"
    return verdicts


def explain(verdict: dict[str, Any]) -> str:
    """Return what is wrong with a run, how it came about and how to see it again."""
    return "\n".join(
        [
            f"seed {verdict['seed']}:",
            *(f"  {violation}" for violation in verdict["violations"]),
            "last events:",
            *(f"  {event}" for event in verdict["newest"][-EVENTS_SHOWN:]),
            f"replay: make sim SEED={verdict['seed']}",
        ]
    )


@pytest.mark.skipif(SEED is None, reason="replays the seed that STRATA_SIM_SEED names")
def test_replay() -> None:
    """The seed that is asked for is a good run."""
    assert SEED is not None
    process = start("--seeds", SEED, "--show")
    bad = [verdict for verdict in verdicts_of(process, 1) if verdict["violations"]]
    assert not bad, explain(bad[0])


@needs_all_seeds
@pytest.mark.timeout(SEEDS * SECONDS_PER_SEED)
def test_clusters_survive_faults() -> None:
    """Faults within what is promised break no invariant, lose nothing, and leave nothing stuck."""
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    lanes = [seeds[lane::PROCESSES] for lane in range(min(PROCESSES, SEEDS))]
    processes = [start("--seeds", ",".join(map(str, lane))) for lane in lanes]
    verdicts = [
        verdict
        for process, lane in zip(processes, lanes, strict=True)
        for verdict in verdicts_of(process, len(lane))
    ]
    bad = [verdict for verdict in verdicts if verdict["violations"]]
    assert not bad, "\n\n".join(map(explain, bad))
    # A storm in which nothing happens proves nothing.
    for verdict in verdicts:
        assert verdict["faults"] >= 2 and verdict["answered"] >= 60, verdict["seed"]
        idle = [kind for kind in EACH_SEED if not verdict["activity"].get(kind)]
        assert not idle, f"seed {verdict['seed']} did nothing of {idle}"
    for kind in SOME_SEED:
        busy = sum(bool(verdict["activity"].get(kind)) for verdict in verdicts)
        assert SEEDS < 20 or busy >= SEEDS // 10, f"{kind} in {busy} of {SEEDS} seeds"


@needs_all_seeds
@pytest.mark.timeout(SEEDS * SECONDS_PER_SEED)
def test_raft_groups_that_rest() -> None:
    """Without a tier and tables nothing but clients wakes a raft group; all holds there, too."""
    seeds = max(1, SEEDS // 20)
    last = FIRST_SEED + seeds - 1
    verdicts = verdicts_of(start("--at-rest", "--seeds", f"{FIRST_SEED}-{last}"), seeds)
    bad = [verdict for verdict in verdicts if verdict["violations"]]
    assert not bad, "\n\n".join(map(explain, bad))


@needs_all_seeds
@pytest.mark.timeout(SEEDS * SECONDS_PER_SEED)
def test_lite_topics() -> None:
    """Messages of lite topics come in order, once each, and lite topics that ended begin anew."""
    seeds = max(2, SEEDS // 20)
    last = FIRST_SEED + seeds - 1
    verdicts = verdicts_of(start("--lite", "--seeds", f"{FIRST_SEED}-{last}"), seeds)
    bad = [verdict for verdict in verdicts if verdict["violations"]]
    assert not bad, "\n\n".join(map(explain, bad))
    for verdict in verdicts:
        assert verdict["activity"].get("lite_sends"), verdict["seed"]
    assert any(verdict["activity"].get("lite_topics_ended") for verdict in verdicts)


@needs_all_seeds
@pytest.mark.timeout(2 * SECONDS_PER_SEED)
def test_same_seed_same_run() -> None:
    """Two processes that run one seed see the same events, to the last message."""
    processes = [start("--seeds", str(FIRST_SEED)) for _ in range(2)]
    first, second = (verdicts_of(process, 1)[0] for process in processes)
    for verdict in (first, second):
        del verdict["cpu_s"]
    assert first == second


def catch(name: str) -> subprocess.CompletedProcess[str]:
    """Put a mutation in and run seeds until one finds it."""
    seeds = MUTATIONS[name].seeds
    return subprocess.run(
        [sys.executable, str(HERE / "mutations.py"), name, *map(str, seeds)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=len(seeds) * SECONDS_PER_SEED,
        check=False,
    )


@needs_all_seeds
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name: str) -> None:
    """A fault in our own code is found within a few seeds."""
    hunt = catch(name)
    print(hunt.stdout, hunt.stderr)
    assert hunt.returncode == 0, f"{name} was not found"
    assert json.loads(hunt.stdout.splitlines()[-1])["found"]
