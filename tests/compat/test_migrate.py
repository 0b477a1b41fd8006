"""A real RocketMQ 5.5 is copied while it serves: killed, resumed, verified, and switched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strata_remoting import RequestCode, decode_properties
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.compat.collect import DEADLINE_S
from tests.e2e.standalone import Standalone
from tests.parts.rocketmq import RocketMq

COMPRESSED = 1
# The servers of RocketMQ need up to a minute to start.
pytestmark = pytest.mark.timeout(300)
PROGRAM = (sys.executable, "-m", "strata_cli.main")


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMq]:
    """The source; each test has topics of its own."""
    servers = RocketMq(tmp_path_factory.mktemp("rocketmq"))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Standalone]:
    """The target."""
    node = Standalone(tmp_path / "data")
    node.start()
    yield node
    node.close()


class Run:
    """A `strata migrate run` as a process.

    Args:
        nameserver: of the source.
        target: the node.
        state: the file.
        options: of the command.
    """

    def __init__(self, nameserver: str, target: Standalone, state: Path, *options: str) -> None:
        place = ["--state", str(state), "--endpoint", target.endpoint, "-o", "json"]
        self._target = target
        self._state = state
        self._process = subprocess.Popen(
            [*PROGRAM, "migrate", "run", nameserver, *place, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ,
        )

    def copied(self) -> int:
        """Return how many messages it has copied."""
        if not self._state.exists():
            return 0
        return int(
            self._target.strata("migrate", "status", "--state", str(self._state))["messages"]
        )

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, while it runs."""
        ends_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < ends_s, f"{self.copied()} messages were copied"
            time.sleep(0.05)

    def end(self, number: signal.Signals) -> str:
        """Send a signal; return what it said once it has ended."""
        self._process.send_signal(number)
        return self._process.communicate(timeout=DEADLINE_S)[0]


async def send_all(broker: str, sends: Sequence[tuple[str, int, bytes, dict[str, str]]]) -> None:
    """Send (topic, queue, body, properties), each after the answer to the one before."""
    async with RemotingClient(broker) as client:
        for topic, queue, body, properties in sends:
            await client.send(topic, body, queue, 0, **properties)


def received(target: Standalone, topic: str, group: str, most: int) -> list[bytes]:
    """Receive and ack as a gRPC consumer until nothing comes; return the bodies."""
    bodies: list[bytes] = []
    while True:
        options = ("--group", group, "--count", str(most), "--ack", "--wait", "2s")
        some = target.strata("message", "receive", topic, *options)["messages"]
        if not some:
            return bodies
        bodies += (one["body"].encode() for one in some)


def stored(target: Standalone, topic: str) -> list[list[str]]:
    """Return the bodies of a topic by queue."""
    queues = target.strata("topic", "show", topic)["queue_status"]
    found: list[list[str]] = [[] for _ in queues]
    page = ""
    while True:
        options = ("--count", "1000", *(("--page", page) if page else ()))
        answer = target.strata("message", "query", topic, *options)
        for one in answer["messages"]:
            found[one["queue"]].append(one["body"])
        page = answer["next_page"]
        if not page:
            return found


def verified(target: Standalone, state: Path) -> dict[str, Any]:
    """Verify; return the result."""
    found = target.strata("migrate", "verify", "--state", str(state))
    assert isinstance(found, dict)
    return found


def test_a_copy_is_killed_and_resumed(
    rocketmq: RocketMq, target: Standalone, tmp_path: Path
) -> None:
    """After two kill -9 all messages are there once, in order, and a group gets what is left."""
    rocketmq.create_topic("orders", 4, "NORMAL")
    rocketmq.create_topic("steps", 2, "FIFO")
    rocketmq.create_topic("older", 2)
    rocketmq.create_group("billing", 3)
    plain = [
        ("orders", n % 4, b"order-%d" % n, {"UNIQ_KEY": f"ORDER{n:06}", "TAGS": "t", "KEYS": "k"})
        for n in range(2_000)
    ]
    # A producer that repeats a send after a lost answer leaves one id twice.
    plain.append(("orders", 0, b"order-0", {"UNIQ_KEY": "ORDER000000"}))
    steps = [
        ("steps", n % 2, b"step-%d" % n, {"UNIQ_KEY": f"STEP{n:06}", "__SHARDINGKEY": f"g{n % 6}"})
        for n in range(300)
    ]
    asyncio.run(send_all(rocketmq.broker, plain + steps))
    asyncio.run(_send_compressed(rocketmq.broker))
    for queue in range(4):
        rocketmq.set_position("billing", "orders", queue, 100 * (queue + 1))
    for queue in range(2):
        rocketmq.set_position("billing", "steps", queue, 120)

    state, nameserver = tmp_path / "state.db", rocketmq.nameserver
    wanted = ("--topic", "orders", "--topic", "steps", "--topic", "older")
    plan = target.strata("migrate", "plan", nameserver, "--state", str(state), *wanted)
    topics = {one["topic"]: one for one in plan["topics"]}
    assert {name: (topics[name]["type"], topics[name]["messages"]) for name in topics} == {
        "older": ("MIXED", 1),
        "orders": ("NORMAL", 2_001),
        "steps": ("FIFO", 300),
    }
    attempts = {one["group"]: one["max_attempts"] for one in plan["groups"]}
    assert attempts["billing"] == 4
    assert target.strata("topic", "list")["topics"] == []

    for copied in (300, 900):
        run = Run(nameserver, target, state, "--max-messages-per-s", "150", *wanted)
        run.until(lambda copied=copied, run=run: run.copied() >= copied)  # type: ignore[misc]
        run.end(signal.SIGKILL)
        assert run.copied() < 2_000
    done = target.strata("migrate", "run", nameserver, "--state", str(state), *wanted)
    assert (done["messages"], done["repeated"], done["refused"]) == (2_301, 1, 0)
    result = verified(target, state)
    assert (result["wrong"], len(result["queues"])) == (0, 8)

    assert stored(target, "orders") == [
        [f"order-{n}" for n in range(2_000) if n % 4 == queue] for queue in range(4)
    ]
    assert sorted(body for queue in stored(target, "steps") for body in queue) == sorted(
        f"step-{n}" for n in range(300)
    )
    assert stored(target, "older") == [["c" * 10_000], []]
    left = [b"order-%d" % n for n in range(2_000) if n // 4 >= 100 * (n % 4 + 1)]
    assert sorted(received(target, "orders", "billing", 1_000)) == sorted(left)
    # Message groups of both source queues may share a queue: some messages come again.
    assert set(received(target, "steps", "billing", 300)) >= {
        b"step-%d" % n for n in range(300) if n // 2 >= 120
    }


async def _send_compressed(broker: str) -> None:
    async with RemotingClient(broker) as client:
        fields = send_fields("older", 0, COMPRESSED, UNIQ_KEY="OLDER1")
        await client.call(RequestCode.SEND_MESSAGE_V2, fields, zlib.compress(b"c" * 10_000))


class OldApplication:
    """A producer and a consumer of the source that go on until they are stopped.

    Args:
        rocketmq: the source.
        topic: of two queues.
        group: of the consumer.
    """

    def __init__(self, rocketmq: RocketMq, topic: str, group: str) -> None:
        self._rocketmq = rocketmq
        self._topic = topic
        self._group = group
        self._stop_producer = threading.Event()
        self._stop_consumer = threading.Event()
        self.sent: list[bytes] = []
        self.consumed: list[bytes] = []
        self._threads = [
            threading.Thread(target=lambda: asyncio.run(self._produce())),
            threading.Thread(target=lambda: asyncio.run(self._consume())),
        ]
        for thread in self._threads:
            thread.start()

    def stop_producer(self) -> None:
        """Step 4 of the runbook: no more messages to the source."""
        self._stop_producer.set()
        self._threads[0].join()

    def stop_consumer(self) -> None:
        """Its position is stored before it ends."""
        self._stop_consumer.set()
        self._threads[1].join()

    async def _produce(self) -> None:
        async with RemotingClient(self._rocketmq.broker) as client:
            while not self._stop_producer.is_set():
                number = len(self.sent)
                body = b"message-%d" % number
                await client.send(self._topic, body, number % 2, UNIQ_KEY=f"FOLLOW{number:06}")
                self.sent.append(body)
                await asyncio.sleep(0.002)

    async def _consume(self) -> None:
        """Consume half as fast as the producer sends, so that something is left."""
        offsets = [0, 0]
        async with RemotingClient(self._rocketmq.broker) as client:
            while not self._stop_consumer.is_set():
                for queue in range(2):
                    found = await self._pull(client, queue, offsets[queue])
                    self.consumed += found
                    offsets[queue] += len(found)
                    fields = {"consumerGroup": self._group, "topic": self._topic}
                    await client.call(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        fields | {"queueId": str(queue), "commitOffset": str(offsets[queue])},
                    )
                await asyncio.sleep(0.05)

    async def _pull(self, client: RemotingClient, queue: int, offset: int) -> list[bytes]:
        _, found = await client.pull(self._topic, self._group, queue, offset)
        return [one.body for one in found[:4]]


def test_an_application_moves_under_traffic(
    rocketmq: RocketMq, target: Standalone, tmp_path: Path
) -> None:
    """The runbook: follow, stop the consumer, move the producer, end, start the consumer here.

    Each message is consumed once, at one of the two sides, and in the order of its queue.
    """
    topic, group = "moving", "movers"
    rocketmq.create_topic(topic, 2, "NORMAL")
    rocketmq.create_group(group, 3)
    application = OldApplication(rocketmq, topic, group)
    state = tmp_path / "state.db"
    run = Run(
        rocketmq.nameserver, target, state, "--follow", "--interval", "200ms", "--topic", topic
    )
    try:
        run.until(lambda: run.copied() >= 200)
        application.stop_consumer()
        at_switch = len(application.sent)
        run.until(lambda: len(application.sent) >= at_switch + 100)
    finally:
        application.stop_consumer()
        application.stop_producer()
    # The producer has moved: its first message at the target may come before the last copies.
    target.strata("message", "send", topic, "--body", "new")
    run.until(lambda: run.copied() == len(application.sent))
    said = run.end(signal.SIGINT)
    assert '"stopped": true' in said, said
    # A last run carries the last positions over, whatever the end of the other one cut off.
    last = target.strata(
        "migrate", "run", rocketmq.nameserver, "--state", str(state), "--topic", topic
    )
    assert (last["messages"], last["cursors_left_alone"]) == (len(application.sent), 0)
    assert verified(target, state)["wrong"] == 0

    here = received(target, topic, group, 1_000)
    copied = [body for body in here if body != b"new"]
    assert here.count(b"new") == 1
    assert sorted(application.consumed + copied) == sorted(application.sent)
    for queue in range(2):
        numbers = [int(body.rpartition(b"-")[2]) for body in copied]
        mine = [number for number in numbers if number % 2 == queue]
        assert mine == sorted(mine)
    assert len(application.consumed) > 20
    assert len(copied) > 100


async def _send_retries(broker: str) -> None:
    """Send four tries of one message to the topic of a group's retries, as a consumer does."""
    async with RemotingClient(broker) as client:
        for tries in range(1, 5):
            known = {"UNIQ_KEY": "TRIED1", "RETRY_TOPIC": "tried", "ORIGIN_MESSAGE_ID": "TRIED1"}
            fields = send_fields("%RETRY%triers", 0, 0, **known) | {"j": tries, "l": 16}
            await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"try-%d" % tries)


async def _pulled_here(endpoint: str) -> list[tuple[bytes, int, str, str]]:
    """Pull the retries at the target, from the group's position on."""
    async with RemotingClient(endpoint) as client:
        place = {"consumerGroup": "triers", "topic": "%RETRY%triers", "queueId": "0"}
        position = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, place)
        offset = int(position.fields["offset"])
        _, found = await client.pull("%RETRY%triers", "triers", 0, offset)
        shown = [(one, decode_properties(one.properties)) for one in found]
        return [
            (one.body, one.reconsume_times, known["UNIQ_KEY"], known["RETRY_TOPIC"])
            for one, known in shown
        ]


def test_waiting_retries_are_copied(rocketmq: RocketMq, target: Standalone, tmp_path: Path) -> None:
    """Each try by itself, although all have one id; a consumer of the target sees what it was."""
    rocketmq.create_topic("tried", 1, "NORMAL")
    rocketmq.create_group("triers", 16)
    asyncio.run(_send_retries(rocketmq.broker))
    rocketmq.set_position("triers", "%RETRY%triers", 0, 1)
    state = str(tmp_path / "state.db")
    wanted = ("--topic", "tried", "--topic", "%RETRY%triers", "--retries", "--state", state)
    plan = target.strata("migrate", "plan", rocketmq.nameserver, *wanted)
    topics = {one["topic"]: one["messages"] for one in plan["topics"]}
    assert topics == {"tried": 0, "%RETRY%triers": 3}
    done = target.strata("migrate", "run", rocketmq.nameserver, *wanted)
    assert (done["messages"], done["repeated"]) == (3, 0)
    assert verified(target, tmp_path / "state.db")["wrong"] == 0
    assert asyncio.run(_pulled_here(target.endpoint)) == [
        (b"try-%d" % tries, tries, "TRIED1", "tried") for tries in range(2, 5)
    ]
