"""A witness of abuse: somebody who works beside it and says how the node took it.

While a block runs, a producer sends on a connection of its own and the node's memory is sampled.
When the block ends, the node must live, a new client must be able to send, receive and
acknowledge, the memory must have stayed within bounds and come back, and the log must hold no
stack: what a client does is no reason for one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import grpc

from strata_testing import until
from tests.e2e.client import Client, RefusedError
from tests.e2e.process import resident_bytes
from tests.e2e.standalone import Standalone
from tests.limits import within

MB = 1_000_000
PEAK_ABOVE_START_BYTES = 300 * MB
REST_ABOVE_START_BYTES = 100 * MB
REST_TIMEOUT_S = 30.0
LONGEST_GAP_S = 10.0
NEWCOMER_TIMEOUT_S = 30.0
TOPIC = "witness"
GROUP = "witness"


@dataclass
class Seen:
    """Answers and memory that the witness saw.

    Attributes:
        answered_s: monotonic times of the sends that were answered.
        refused: what sends were refused with, or how they failed.
        peak_bytes: most resident memory of the node.
    """

    answered_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    peak_bytes: int = 0


@asynccontextmanager
async def witnessed(node: Standalone, memory: bool = True) -> AsyncIterator[Seen]:
    """Work beside the block, then judge.

    Args:
        node: with a topic and a consumer group of the witness (`prepared`).
        memory: whether memory is judged, too.
    """
    seen = Seen()
    log_before = node.log_path.stat().st_size
    start_bytes = await asyncio.to_thread(resident_bytes, node.pid)
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_produce(node, seen, ended))
        tasks.create_task(_sample(node, seen, ended))
        try:
            await until(lambda: len(seen.answered_s) >= 2, NEWCOMER_TIMEOUT_S)
            yield seen
        finally:
            ended.set()

    assert node.alive, node.log_path.read_text()[-2_000:]
    _judge_gaps(seen)
    await _newcomer(node)
    if memory:
        rest_bytes = await _rest(node, start_bytes)
        print(f"memory: {_mb(start_bytes)} at the start, {_mb(seen.peak_bytes)}, {_mb(rest_bytes)}")
        assert seen.peak_bytes - start_bytes < PEAK_ABOVE_START_BYTES
        assert rest_bytes - start_bytes < REST_ABOVE_START_BYTES
    _judge_log(node, log_before)


def prepared(data_dir: Path) -> Iterator[Standalone]:
    """Give a node that has what a witness needs, and may open as many files as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    node = Standalone(data_dir)
    node.start()
    # One queue is one name: any receive of the topic finds everything.
    node.create_topic(TOPIC, "--queues", "1")
    node.create_group(GROUP)
    yield node
    node.close()


async def _produce(node: Standalone, seen: Seen, ended: asyncio.Event) -> None:
    client = Client(node.endpoint)
    seen.answered_s.append(time.monotonic())
    try:
        while not ended.is_set():
            try:
                await client.send(TOPIC, [(client.new_message_id(), b"witness")])
                seen.answered_s.append(time.monotonic())
            except RefusedError as error:
                seen.refused.append(str(error))
            except grpc.aio.AioRpcError as error:
                seen.refused.append(error.code().name)
            await asyncio.sleep(0.02)
    finally:
        await client.close()


async def _sample(node: Standalone, seen: Seen, ended: asyncio.Event) -> None:
    while not ended.is_set():
        resident = await asyncio.to_thread(resident_bytes, node.pid)
        seen.peak_bytes = max(seen.peak_bytes, resident)
        await asyncio.sleep(0.05)


def _judge_gaps(seen: Seen) -> None:
    times = [*seen.answered_s, time.monotonic()]
    longest_s = max(after - before for before, after in pairwise(times))
    within("longest time without an answer", longest_s, LONGEST_GAP_S)
    assert len(seen.answered_s) > 1, seen.refused[-3:]
    assert not any("UNKNOWN" in text or "INTERNAL" in text for text in seen.refused), seen.refused


async def _newcomer(node: Standalone) -> None:
    """A client that was not there before sends, receives and acknowledges."""
    async with asyncio.timeout(NEWCOMER_TIMEOUT_S), Client(node.endpoint) as client:
        began = time.monotonic()
        message_id = client.new_message_id()
        await _sent(client, message_id)
        [queue] = await client.queues(TOPIC)
        found = False
        while not found:
            messages = await client.receive(queue, GROUP, poll_s=2)
            if messages:
                await client.ack(TOPIC, GROUP, messages)
            found = any(message.message_id == message_id for message in messages)
        within("a newcomer is served", time.monotonic() - began, LONGEST_GAP_S)


async def _sent(client: Client, message_id: str) -> None:
    for _ in range(int(NEWCOMER_TIMEOUT_S / 0.1)):
        with suppress(RefusedError, grpc.aio.AioRpcError):
            await client.send(TOPIC, [(message_id, b"newcomer")])
            return
        await asyncio.sleep(0.1)


async def _rest(node: Standalone, start_bytes: int) -> int:
    """Wait until the memory has come back; return what it came to."""
    until = time.monotonic() + REST_TIMEOUT_S
    while True:
        resident = await asyncio.to_thread(resident_bytes, node.pid)
        if resident - start_bytes < REST_ABOVE_START_BYTES or time.monotonic() > until:
            return resident
        await asyncio.sleep(0.5)


def _judge_log(node: Standalone, begin: int) -> None:
    with node.log_path.open("rb") as log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").splitlines()
    stacks = [line for line in lines if "Traceback" in line or _has_stack(line)]
    assert not stacks, stacks[0][:2_000]
    assert sum(map(len, lines)) < MB, f"{len(lines)} lines: {lines[-1][:500]}"


def _has_stack(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return "exception" in json.loads(line)
    except ValueError:
        return False


def _mb(size_bytes: int) -> str:
    return f"{size_bytes // MB} MB"
