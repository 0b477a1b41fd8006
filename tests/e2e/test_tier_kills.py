"""kill -9 of a standalone node at the steps of an upload: what was acknowledged comes back.

The log gives up what the tier has while the load goes on, and the folder with the rows is lost
every other time: most of what is read at the end is in the tier only.

STRATA_TEST_ROUNDS sets the number of kills (3; 10 in `make test-full`), STRATA_TEST_SEED replays
the moments of a run.
"""

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from apache.rocketmq.v2.definition_pb2 import MessageQueue
from strata_testing import until
from tests import stages
from tests.e2e.client import SHORT_INVISIBLE_S, SHORT_POLL_S, Client
from tests.e2e.history import History, check
from tests.e2e.standalone import STRATA, Standalone

MIB = 1024 * 1024
TOPIC, FILLER = "tiered", "filler"
SENDERS = 4
LOAD_S = (0.3, 1.5)
# Until the step of an upload comes at which the node is to be killed.
STEP_LIMIT_S = 3.0
POLL_S = 0.002
UPLOADED_LIMIT_S = 60.0
# A pop that waits for the store may come too late for its call: then its leases have to run out.
QUIET_S = SHORT_INVISIBLE_S + 45.0
DRAIN_LIMIT_S = 180.0
LEAST_SENDS_PER_ROUND = 10
SEGMENT_BYTES = 8 * MIB
# The log gives up whole segments and never the newest one; what it keeps at the end is filler.
LOG_LIMIT_BYTES = FILLER_BYTES = 3 * SEGMENT_BYTES
SETTINGS = {
    "STRATA_TIER_OBJECT_BYTES": str(MIB),
    "STRATA_TIER_FLUSH_AGE_MS": "100",
    "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000",
    "STRATA_TIER_DEFAULT_LOCAL_RETENTION_MS": "0",
    "STRATA_STORAGE_LOG_SEGMENT_BYTES": str(SEGMENT_BYTES),
    "STRATA_STORAGE_RECENT_BYTES": "0",
    "STRATA_STORAGE_RETENTION_INTERVAL_MS": "300",
    "STRATA_STORAGE_MAX_FLUSH_AGE_MS": "500",
}


def rounds() -> int:
    """Return how often the test kills the node."""
    return stages.rounds(test=3, full=10)


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """The folder of the tier."""
    return tmp_path / "tier"


@pytest.fixture
def node(tmp_path: Path, tier: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """A node that uploads all the time and keeps nothing in memory."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STRATA_TIER_URL", f"posix://{tier}")
    standalone = Standalone(tmp_path / "data", short_times=True)
    standalone.start()
    standalone.create_topic(TOPIC, "--queues", "4", "--retention", "365d")
    level = ("--tiered-storage-level", "DISABLE")
    standalone.create_topic(FILLER, "--queues", "2", "--retention", "1s", *level)
    yield standalone
    standalone.close()


# When the node is killed ------------------------------------------------------------------------


def objects(tier: Path) -> set[Path]:
    """Return the objects with messages."""
    return set(tier.rglob("*.set"))


def is_written(tier: Path, before: set[Path]) -> bool:
    """Whether an object is being written."""
    uploads = tier / ".uploads"
    return uploads.is_dir() and any(uploads.iterdir())


def is_put(tier: Path, before: set[Path]) -> bool:
    """Whether an object is in the store that was not there before; it may not be committed yet."""
    return bool(objects(tier) - before)


def at_once(tier: Path, before: set[Path]) -> bool:
    """Return True, whatever happens in the tier."""
    return True


STEPS: tuple[Callable[[Path, set[Path]], bool], ...] = (is_written, is_put, at_once)


def until_step(tier: Path, step: Callable[[Path, set[Path]], bool]) -> None:
    """Wait until the node is at a step of an upload; not for long. Blocks."""
    before = objects(tier)
    deadline_s = time.monotonic() + STEP_LIMIT_S
    while not step(tier, before) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


# Load -------------------------------------------------------------------------------------------


async def send_until_cut(node: Standalone, history: History, chance: random.Random) -> None:
    """Send until the server is gone."""
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        with suppress(grpc.aio.AioRpcError):
            while True:
                message_id = client.new_message_id()
                body = chance.randbytes(chance.choice((100, 20_000, 300_000)))
                history.attempt(TOPIC, message_id, body)
                [offset] = await client.send(TOPIC, [(message_id, body)])
                history.answer(message_id, offset)


async def drain(node: Standalone, history: History) -> None:
    """Read the topic with a new consumer group."""
    async with (
        Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client,
        asyncio.timeout(DRAIN_LIMIT_S),
        asyncio.TaskGroup() as tasks,
    ):
        for queue in await client.queues(TOPIC):
            tasks.create_task(drain_queue(client, queue, history))


async def drain_queue(client: Client, queue: MessageQueue, history: History) -> None:
    """Read what one broker name has of the topic until nothing comes."""
    last_s = time.monotonic()
    while time.monotonic() - last_s < QUIET_S:
        delivered = await client.receive(queue, "drain", SHORT_POLL_S)
        for each in delivered:
            history.deliver("drain", TOPIC, each.message_id, each.body, each.queue, each.offset)
        if delivered:
            last_s = time.monotonic()
            await client.ack(TOPIC, "drain", delivered)
        elif await client.is_consumed(TOPIC, "drain", len(history.answered)):
            return


# The end ----------------------------------------------------------------------------------------


def log_bytes(node: Standalone) -> int:
    """Return what the log takes."""
    return sum(file.stat().st_size for file in (node.data_dir / "storage" / "log").iterdir())


async def give_up_log(node: Standalone) -> None:
    """Fill the newest segments with something else until what was sent is in the tier only."""
    deadline_s = time.monotonic() + UPLOADED_LIMIT_S
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        for _ in range(FILLER_BYTES // MIB):
            await client.send(FILLER, [(client.new_message_id(), os.urandom(MIB))])
        while log_bytes(node) >= LOG_LIMIT_BYTES:
            assert time.monotonic() < deadline_s, node.strata("tier", "status")
            await client.send(FILLER, [(client.new_message_id(), os.urandom(1_000))])
            await asyncio.sleep(0.3)


def verify(tier: Path) -> Any:
    """Read every byte of the tier without the node; return the exit code and what was said."""
    done = subprocess.run(
        [str(STRATA), "tier", "verify", "--from", f"posix://{tier}", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_at_the_steps_of_an_upload(
    node: Standalone, tier: Path, chance: random.Random
) -> None:
    """Every acknowledged message is delivered with its bytes, at its offset, stored once."""
    history = History()
    for number in range(rounds()):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(send_until_cut(node, history, chance))
            await asyncio.sleep(chance.uniform(*LOAD_S))
            wanted = LEAST_SENDS_PER_ROUND * (number + 1)
            await until(lambda wanted=wanted: len(history.answered) > wanted)  # type: ignore[misc]
            await asyncio.to_thread(until_step, tier, STEPS[number % len(STEPS)])
            await asyncio.to_thread(node.kill)
        if chance.random() < 0.5:
            shutil.rmtree(node.data_dir / "storage" / "state")
        await asyncio.to_thread(node.start)
    await give_up_log(node)
    await drain(node, history)
    sent_bytes = sum(len(history.sends[each].body) for each in history.answered)
    print(f"{len(history.answered)} of {len(history.sends)} sends answered, {sent_bytes} bytes")
    assert len(history.answered) > LEAST_SENDS_PER_ROUND * rounds(), "hardly any load"
    assert check(history) == []
    await asyncio.to_thread(node.kill)
    assert (await asyncio.to_thread(verify, tier))[0] == 0
