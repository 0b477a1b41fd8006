"""kill -9 of a standalone node with tables: no acknowledged put is lost, no swap is won twice.

STRATA_TEST_ROUNDS sets the number of kills (3; 10 in `make test-full`), STRATA_TEST_SEED replays
the moments of a run.
"""

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from strata_kv.aio import AsyncKvClient
from strata_kv.model import Engine
from strata_testing import until
from tests import stages
from tests.e2e.kv_load import Historians, Promises, Witnesses, running
from tests.e2e.standalone import Standalone

LOAD_S = (0.2, 1.2)
TABLES = {"on-disk": Engine.ROCKSDB, "in-memory": Engine.MEMORY}
LEAST_PER_ROUND = 20


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """A running node with the plugin; memory is settled and rows are flushed often."""
    monkeypatch.setenv("STRATA_PLUGINS", "kv")
    monkeypatch.setenv("STRATA_STORAGE_MAX_FLUSH_AGE_MS", "500")
    standalone = Standalone(tmp_path / "data")
    standalone.start()
    for table, engine in TABLES.items():
        standalone.strata("kv", "create", table, "--engine", engine.name.lower())
    yield standalone
    standalone.close()


def rounds() -> int:
    """Return how often a test kills the node."""
    return stages.rounds(test=3, full=10)


def has_work(count: Callable[[], int], round_number: int) -> bool:
    """Tell whether enough was done by this round (the first is 1) for a kill to meet work."""
    return count() > LEAST_PER_ROUND * round_number


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_under_writes(node: Standalone, chance: random.Random) -> None:
    """Both engines, the state folder lost every other time: all that was acknowledged is there.

    Watches go on where they were and tell every change once.
    """
    promises, witnesses = Promises(), Witnesses()
    work = [one for table in TABLES for one in promises.work(table)]
    work += [witnesses.work(table) for table in TABLES]
    for number in range(1, rounds() + 1):
        async with running(node.endpoint, work):
            await asyncio.sleep(chance.uniform(*LOAD_S))
            await until(partial(has_work, lambda: len(promises.won), number))
            await asyncio.to_thread(node.kill)
        if chance.random() < 0.5:
            shutil.rmtree(node.data_dir / "storage" / "state")
        await asyncio.to_thread(node.start)
        async with AsyncKvClient(node.endpoint) as client:
            assert await promises.broken(client) == []
            assert await witnesses.broken(client) == []
    print(f"{sum(promises.acknowledged.values())} puts, {len(promises.won)} swaps acknowledged")


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_histories_under_kills_are_linearizable(
    node: Standalone, chance: random.Random
) -> None:
    """Puts, gets, swaps and deletions of several clients have an order that explains them all."""
    historians = Historians(chance)
    for number in range(rounds()):
        work = [one for table in TABLES for one in historians.work(table, number)]
        async with running(node.endpoint, work):
            await asyncio.sleep(chance.uniform(*LOAD_S))
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(node.start)
            await asyncio.sleep(chance.uniform(*LOAD_S))
            await until(partial(has_work, historians.count, number + 1))
    print(f"{historians.count()} operations answered")
    assert historians.judge() == []
