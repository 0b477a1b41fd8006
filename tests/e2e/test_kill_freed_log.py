"""kill -9 of a node that frees its log all the time: rows come back without the log's beginning.

Segments are small and most of what is sent is kept for a second. Messages that are kept for long
are moved from segment to segment, and the rest of the state is in checkpoints: half of the kills
delete the folder of the rows, so that both are all that is left (rules 6 and 10). A kill spares
the page cache: that what was acknowledged was synced is for `SimulatedDisk` to show.

STRATA_TEST_ROUNDS sets the number of kills (10), STRATA_TEST_SEED replays the moments of a run.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2.definition_pb2 import MessageQueue
from strata_testing import until
from tests.e2e.client import SHORT_INVISIBLE_S, SHORT_POLL_S, Client
from tests.e2e.history import History, check, skipped
from tests.e2e.standalone import Standalone

MIB = 1024 * 1024
KEPT, FILLER = "freed-kept", "freed-short"
DRAIN, BUSY = "freed-drain", "freed-busy"
SENDERS, FILLERS = 4, 4
LOAD_S = (0.5, 1.5)
FILLER_BODY_BYTES = 200_000
FREED_LIMIT_S = 60.0
QUIET_S = 45.0
"""Nothing comes for so long: what is left never comes; longer than any stall of a busy machine."""
DRAIN_LIMIT_S = 180.0
LEAST_SENDS_PER_ROUND = 10
SETTINGS = {
    "STRATA_STORAGE_LOG_SEGMENT_BYTES": str(8 * MIB),
    "STRATA_STORAGE_RETENTION_INTERVAL_MS": "300",
    "STRATA_STORAGE_MAX_FLUSH_AGE_MS": "500",
    "STRATA_STORAGE_RECENT_BYTES": "0",
}


def rounds() -> int:
    """Return how often the test kills the node."""
    return int(os.environ.get("STRATA_TEST_ROUNDS", "10"))


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """A node with one topic that keeps its messages and one that does not."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    standalone = Standalone(tmp_path / "data", short_times=True)
    standalone.start()
    # Each has a raft group of its own: a raft entry with messages of both would be kept whole, and
    # a segment with more than half of it kept is not freed.
    standalone.create_topic(KEPT, "--queues", "1", "--retention", "365d")
    standalone.create_topic(FILLER, "--queues", "1", "--retention", "1s")
    yield standalone
    standalone.close()


def first_position(node: Standalone) -> int:
    """Return where the log begins on the disk."""
    return min(int(file.stem) for file in (node.data_dir / "storage" / "log").glob("*.log"))


# Load -------------------------------------------------------------------------------------------


async def send_until_cut(node: Standalone, history: History, chance: random.Random) -> None:
    """Send what is kept until the server is gone."""
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        with suppress(grpc.aio.AioRpcError):
            while True:
                message_id = client.new_message_id()
                body = chance.randbytes(chance.choice((100, 1_000)))
                history.attempt(KEPT, message_id, body)
                [offset] = await client.send(KEPT, [(message_id, body)])
                history.answer(message_id, offset)
                # Segments of which more than half is kept are not freed.
                await asyncio.sleep(0.02)


async def fill_until_cut(node: Standalone) -> None:
    """Send what is gone soon until the server is gone."""
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        with suppress(grpc.aio.AioRpcError):
            while True:
                await client.send(FILLER, [(client.new_message_id(), bytes(FILLER_BODY_BYTES))])


async def consume_until_cut(node: Standalone, history: History) -> None:
    """Receive and acknowledge until the server is gone: acks are in checkpoints, too."""
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        with suppress(grpc.aio.AioRpcError):
            queues = await client.queues(KEPT)
            while True:
                for queue in queues:
                    await consume_once(client, queue, BUSY, history)


async def consume_once(client: Client, queue: MessageQueue, group: str, history: History) -> int:
    """Receive and acknowledge one batch; return its size."""
    delivered = await client.receive(queue, group, SHORT_POLL_S)
    for each in delivered:
        history.deliver(group, KEPT, each.message_id, each.body, each.queue, each.offset)
    if delivered:
        await client.ack(KEPT, group, delivered)
        for each in delivered:
            history.acknowledge(group, each.message_id)
    return len(delivered)


async def load_and_kill(node: Standalone, history: History, chance: random.Random) -> None:
    """Load the node and kill it at a random moment, once it has freed some more of its log."""
    wanted = len(history.answered) + LEAST_SENDS_PER_ROUND
    before, deadline_s = first_position(node), time.monotonic() + FREED_LIMIT_S
    async with asyncio.TaskGroup() as tasks:
        for _ in range(SENDERS):
            tasks.create_task(send_until_cut(node, history, chance))
        for _ in range(FILLERS):
            tasks.create_task(fill_until_cut(node))
        tasks.create_task(consume_until_cut(node, history))
        await asyncio.sleep(chance.uniform(*LOAD_S))
        while first_position(node) == before:
            assert time.monotonic() < deadline_s, "the log is never freed"
            await asyncio.sleep(chance.uniform(0, 0.1))
        await until(lambda: len(history.answered) > wanted)
        await asyncio.to_thread(node.kill)


# The end ----------------------------------------------------------------------------------------


async def drain(node: Standalone, history: History) -> None:
    """Read what is kept with a new consumer group, and what the interrupted one has left."""
    async with (
        Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client,
        asyncio.timeout(DRAIN_LIMIT_S),
        asyncio.TaskGroup() as tasks,
    ):
        for group, quiet_s in ((DRAIN, QUIET_S), (BUSY, SHORT_INVISIBLE_S + QUIET_S)):
            for queue in await client.queues(KEPT):
                tasks.create_task(drain_queue(client, queue, group, quiet_s, history))


async def drain_queue(
    client: Client, queue: MessageQueue, group: str, quiet_s: float, history: History
) -> None:
    """Consume until there is nothing left, or nothing has come for so long."""
    last_s = time.monotonic()
    while time.monotonic() - last_s < quiet_s:
        if await consume_once(client, queue, group, history):
            last_s = time.monotonic()
        elif await client.is_consumed(KEPT, group, len(history.answered)):
            return


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_and_lose_the_state_of_a_log_without_its_beginning(
    node: Standalone, chance: random.Random
) -> None:
    """Kept messages are delivered whole at their offsets; acks hold, no offset is given twice."""
    history = History()
    for number in range(rounds()):
        await load_and_kill(node, history, chance)
        if number % 2 or chance.random() < 0.3:
            shutil.rmtree(node.data_dir / "storage" / "state")
        await asyncio.to_thread(node.start)
    await drain(node, history)
    print(f"{len(history.answered)} of {len(history.sends)} sends answered")
    assert len(history.answered) > LEAST_SENDS_PER_ROUND * rounds(), "hardly any load"
    assert check(history) == []
    assert skipped(history, BUSY, KEPT) == []
