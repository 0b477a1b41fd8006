"""kill -9 at random moments under load: what was acknowledged stays, offsets are never reused.

A killed process leaves what it wrote in the page cache: whether it was flushed before the
acknowledgement, only a loss of power tells: tests/sim loses what was not.

STRATA_TEST_ROUNDS sets the number of kills (3; 10 in `make test-full`), STRATA_TEST_SEED replays
the moments of a run.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2.definition_pb2 import MessageQueue
from strata_testing import until
from tests import stages
from tests.e2e.client import SHORT_INVISIBLE_S, SHORT_POLL_S, Client
from tests.e2e.history import History, check, skipped
from tests.e2e.standalone import Standalone
from tests.limits import within

NORMAL, FIFO = "kill-normal", "kill-fifo"
CONSUMER_GROUP = "kill-consumers"
# Order is promised to consumer groups that ask for it, and checked in none but those.
IN_ORDER = "drain-in-order"
SENDERS = 48
FIFO_SENDERS = 8
LOAD_S = (0.2, 1.5)
START_LIMIT_S = 15.0
QUIET_S = 45.0
"""Nothing comes for so long: what is left never comes; longer than any stall of a busy machine."""
DRAIN_LIMIT_S = 300.0
LEAST_SENDS_PER_ROUND = 20
# They keep up with less than is sent, so every kill finds leases taken.
CONSUMERS = 2


def rounds() -> int:
    """Return how often a test kills the node."""
    return stages.rounds(test=3, full=10)


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Standalone]:
    """A running node with the topics of this test."""
    standalone = Standalone(tmp_path / "data", short_times=True)
    standalone.start()
    standalone.create_topic(NORMAL, "--queues", "8")
    standalone.create_topic(FIFO, "--type", "FIFO", "--queues", "4")
    standalone.create_group(IN_ORDER, "--fifo")
    yield standalone
    standalone.close()


async def send_until_cut(history: History, chance: random.Random, client: Client) -> None:
    """Send requests of one to eight messages, one after another, until the server is gone."""
    while True:
        messages = []
        for _ in range(chance.choice((1, 1, 1, 8))):
            message_id = client.new_message_id()
            body = message_id.encode() * chance.choice((1, 30))
            history.attempt(NORMAL, message_id, body)
            messages.append((message_id, body))
        offsets = await client.send(NORMAL, messages)
        for (message_id, _), offset in zip(messages, offsets, strict=True):
            history.answer(message_id, offset)


async def send_in_order_until_cut(history: History, message_group: str, client: Client) -> None:
    """Send single messages of one message group, each after the answer to the one before."""
    while True:
        message_id = client.new_message_id()
        history.attempt(FIFO, message_id, b"in order", message_group)
        [offset] = await client.send(FIFO, [(message_id, b"in order")], message_group)
        history.answer(message_id, offset)


async def consume_until_cut(history: History, client: Client) -> None:
    """Receive and acknowledge until the server is gone."""
    queues = await client.queues(NORMAL)
    while True:
        for queue in queues:
            await consume_once(history, NORMAL, CONSUMER_GROUP, queue, client)


async def consume_once(
    history: History, topic: str, group: str, queue: MessageQueue, client: Client
) -> int:
    """Receive and acknowledge one batch; return its size."""
    delivered = await client.receive(queue, group, SHORT_POLL_S)
    for message in delivered:
        history.deliver(
            group, topic, message.message_id, message.body, message.queue, message.offset
        )
    if delivered:
        await client.ack(topic, group, delivered)
        for message in delivered:
            history.acknowledge(group, message.message_id)
    return len(delivered)


async def until_cut(node: Standalone, work: Callable[[Client], Awaitable[None]]) -> None:
    """Do the work over a connection of its own; a call without an answer ends it."""
    async with Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client:
        with suppress(grpc.aio.AioRpcError):
            await work(client)


async def load_and_kill(node: Standalone, history: History, chance: random.Random) -> None:
    """Load the node and kill it at a random moment, once it has answered some sends."""
    wanted = len(history.answered) + LEAST_SENDS_PER_ROUND
    work: list[Callable[[Client], Awaitable[None]]] = [
        *[partial(send_until_cut, history, chance)] * SENDERS,
        *[partial(send_in_order_until_cut, history, f"g{n}") for n in range(FIFO_SENDERS)],
        *[partial(consume_until_cut, history)] * CONSUMERS,
    ]
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(until_cut(node, each))
        await asyncio.sleep(chance.uniform(*LOAD_S))
        await until(lambda: len(history.answered) > wanted)
        await asyncio.to_thread(node.kill)


async def drain(node: Standalone, history: History) -> None:
    """Read both topics with new consumer groups, and what the interrupted one has left."""
    plans = [
        (NORMAL, "drain", QUIET_S),
        (FIFO, IN_ORDER, QUIET_S),
        (NORMAL, CONSUMER_GROUP, SHORT_INVISIBLE_S + QUIET_S),  # its leases have to run out
    ]
    async with (
        Client(node.endpoint, invisible_s=SHORT_INVISIBLE_S) as client,
        asyncio.timeout(DRAIN_LIMIT_S),
        asyncio.TaskGroup() as tasks,
    ):
        for topic, group, quiet_s in plans:
            for queue in await client.queues(topic):
                consume = partial(consume_once, history, topic, group, queue, client)
                stored = sum(history.sends[each].topic == topic for each in history.answered)
                is_done = partial(client.is_consumed, topic, group, stored)
                tasks.create_task(until_quiet(consume, is_done, quiet_s))


async def until_quiet(
    consume: Callable[[], Awaitable[int]], is_done: Callable[[], Awaitable[bool]], quiet_s: float
) -> None:
    """Consume until there is nothing left, or nothing has come for so long."""
    last = time.monotonic()
    while time.monotonic() - last < quiet_s:
        if await consume():
            last = time.monotonic()
        elif await is_done():
            return


async def kill_and_check(
    node: Standalone, chance: random.Random, before_restart: Callable[[], None]
) -> None:
    """Run the rounds, then drain and judge."""
    history = History()
    starts = []
    for _ in range(rounds()):
        await load_and_kill(node, history, chance)
        before_restart()
        starts.append(await asyncio.to_thread(node.start))
    await drain(node, history)

    print(
        f"{len(history.sends)} sends, {len(history.answered)} answered, "
        f"{len(history.acknowledged)} acknowledged"
    )
    assert len(history.answered) > LEAST_SENDS_PER_ROUND * len(starts), "hardly any load"
    assert check(history) == []
    assert skipped(history, CONSUMER_GROUP, NORMAL) == []
    within("slowest start", max(starts), START_LIMIT_S)


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_under_load(node: Standalone, chance: random.Random) -> None:
    """No acknowledged message is lost, none invented, none stored twice, no offset reused."""
    await kill_and_check(node, chance, before_restart=lambda: None)


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_and_lose_the_state(node: Standalone, chance: random.Random) -> None:
    """The same holds when the RocksDB folder is gone: the CommitLog alone brings all back."""
    state = node.data_dir / "storage" / "state"

    def lose_state() -> None:
        assert state.is_dir()
        if chance.random() < 0.5:
            shutil.rmtree(state)

    await kill_and_check(node, chance, before_restart=lose_state)
