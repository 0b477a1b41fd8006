"""The service that other clients get while one client misbehaves.

    python bench/misbehaviour.py [--seconds 10] [--rate 100] [--cases receives ...] [--output FILE]

A fresh standalone node. Two producers and two consumers, each with a connection of its own and one
call under way, work alone, then beside each misbehaving client, then alone again. Prints one JSON
object: their calls per second and slowest send, and the share of what they had alone (the mean of
the times before and after). The producers send `--rate` messages a second together if they can; 0:
as many as they can, on an otherwise idle machine. The misbehaving client is a process of the lowest
priority: the benchmark measures the work that it causes in the node, not its own use of the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from apache.rocketmq.v2 import service_pb2_grpc
from strata_mq.requests import ReceiptHandle, decode_handle, encode_handle
from tests.abuse.calls import SERVICE, ack_request, add_message, receive_request, who
from tests.abuse.raw_http2 import (
    CANCEL,
    END_HEADERS,
    HEADERS,
    RST_STREAM,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    grpc_message,
)
from tests.e2e.client import Client, RefusedError
from tests.e2e.standalone import HOST, Standalone

MIB = 1 << 20
TOPIC, FULL_TOPIC, GROUP = "witness", "full", "witness"
FULL_MESSAGES, FULL_BYTES = 1_500, 15_000
LOWEST_PRIORITY = 19
WARM_UP_S = 2.0


@dataclass
class Rates:
    """Service that the others got in one phase."""

    calls: dict[str, int] = field(default_factory=lambda: {"send": 0, "receive_ack": 0})
    failed: int = 0
    slowest_s: float = 0.0


# The others ------------------------------------------------------------------------------------


async def produce(endpoint: str, rates: Rates, until_s: float, rate: float) -> None:
    """Send one message after the other, at most so many a second; who is late catches up."""
    due_s = time.monotonic()
    async with Client(endpoint) as client:
        while time.monotonic() < until_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = due_s + 1 / rate if rate else 0.0
            began_s = time.monotonic()
            try:
                await client.send(TOPIC, [(client.new_message_id(), bytes(1_000))])
                rates.calls["send"] += 1
            except (RefusedError, grpc.aio.AioRpcError):
                rates.failed += 1
            rates.slowest_s = max(rates.slowest_s, time.monotonic() - began_s)


async def consume(endpoint: str, rates: Rates, until_s: float) -> None:
    """Receive and acknowledge what is there."""
    queue = None
    async with Client(endpoint) as client:
        while time.monotonic() < until_s:
            try:
                if queue is None:
                    [queue] = await client.queues(TOPIC)
                messages = await client.receive(queue, GROUP, poll_s=1)
                if messages:
                    await client.ack(TOPIC, GROUP, messages)
                    rates.calls["receive_ack"] += len(messages)
            except (RefusedError, grpc.aio.AioRpcError):
                rates.failed += 1


async def work(endpoint: str, seconds: float, rate: float) -> Rates:
    """Let the others work for a while."""
    rates = Rates()
    until_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(produce(endpoint, rates, until_s, rate / 2))
            tasks.create_task(consume(endpoint, rates, until_s))
    return rates


# The one who misbehaves ------------------------------------------------------------------------


async def for_ever(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    """Do something `count` times at once, each again as soon as it has ended."""

    async def again(number: int) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):
                await one(number)
            # An immediate refusal must not stop this loop's other turns.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(again(number))


def stub_to(port: int) -> Any:
    """Return a stub without limits of its own."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return service_pb2_grpc.MessagingServiceStub(
        grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)
    )


async def queue_of(port: int, topic: str) -> definition.MessageQueue:
    """Return the name of any queue of a topic."""
    async with Client(f"{HOST}:{port}") as client:
        [queue] = await client.queues(topic)
        return queue


async def receives(port: int) -> None:
    """An unbounded loop of receives, as an official example has one."""
    stub = stub_to(port)
    request = receive_request("flood", TOPIC, poll_s=20)
    request.message_queue.CopyFrom(await queue_of(port, TOPIC))

    async def one(_: int) -> None:
        async for _ in stub.ReceiveMessage(request, metadata=who("flood@1@1"), timeout=30):
            pass

    await for_ever(2_000, one)


async def small_sends(port: int) -> None:
    """Two thousand sends of one small message at once, each by the same client."""
    stub = stub_to(port)

    async def one(_: int) -> None:
        request = service.SendMessageRequest()
        message = add_message(request, f"01{os.urandom(16).hex().upper()}", FULL_TOPIC)
        message.body = bytes(100)
        await stub.SendMessage(request, metadata=who("many@1@1"), timeout=30)

    await for_ever(2_000, one)


async def large_receives(port: int) -> None:
    """Fifty receives at once of 32 messages each, read and not acknowledged, by many groups."""
    stub = stub_to(port)
    queue = await queue_of(port, FULL_TOPIC)

    async def one(number: int) -> None:
        request = receive_request(f"large-{number}-{os.urandom(4).hex()}", FULL_TOPIC, poll_s=5)
        request.message_queue.CopyFrom(queue)
        request.batch_size = 32
        async for _ in stub.ReceiveMessage(request, metadata=who("reader@1@1"), timeout=30):
            pass

    await for_ever(50, one)


async def routes(port: int) -> None:
    """Five hundred queries of routes at once."""
    stub = stub_to(port)
    request = service.QueryRouteRequest()
    request.topic.name = TOPIC

    async def one(_: int) -> None:
        await stub.QueryRoute(request, metadata=who("routes@1@1"), timeout=30)

    await for_ever(500, one)


async def large_sends(port: int) -> None:
    """Eight sends of 3 MiB at once."""
    stub = stub_to(port)

    async def one(number: int) -> None:
        request = service.SendMessageRequest()
        message = add_message(request, f"01{os.urandom(16).hex().upper()}", FULL_TOPIC)
        message.body = bytes(3 * MIB)
        await stub.SendMessage(request, metadata=who(f"large@{number}@1"), timeout=30)

    await for_ever(8, one)


async def telemetry(port: int) -> None:
    """Twenty sessions that begin and end without pause."""
    stub = stub_to(port)

    async def one(number: int) -> None:
        command = service.TelemetryCommand()
        command.settings.publishing.topics.add(name=TOPIC)
        name = f"churn@{number}@{os.urandom(4).hex()}"
        stream = stub.Telemetry(metadata=who(name), timeout=10)
        await stream.write(command)
        await stream.read()
        stream.cancel()

    await for_ever(20, one)


async def forged_acks(port: int) -> None:
    """Acknowledgements of 500 handles that name raft groups nobody has."""
    stub = stub_to(port)
    async with Client(f"{HOST}:{port}") as client:
        await client.send(TOPIC, [(client.new_message_id(), b"one")])
        delivered, *_ = await client.receive(await queue_of(port, TOPIC), "forged", poll_s=5)
    handle: ReceiptHandle = decode_handle(delivered.handle)
    texts = [encode_handle(handle._replace(raft_group=2**32 - 1 - each)) for each in range(500)]
    request = ack_request(texts, "forged")

    async def one(_: int) -> None:
        await stub.AckMessage(request, metadata=who("forged@1@1"), timeout=30)

    await for_ever(20, one)


async def filters(port: int) -> None:
    """Ten receives at once whose filter costs much and finds nothing, each by a new group."""
    stub = stub_to(port)
    queue = await queue_of(port, FULL_TOPIC)
    expression = " OR ".join(f"a CONTAINS '{number}x'" for number in range(1_200))

    async def one(number: int) -> None:
        request = receive_request(f"costly-{number}-{os.urandom(4).hex()}", FULL_TOPIC, poll_s=5)
        request.message_queue.CopyFrom(queue)
        request.filter_expression.type = definition.SQL
        request.filter_expression.expression = expression
        async for _ in stub.ReceiveMessage(request, metadata=who("costly@1@1"), timeout=30):
            pass

    await for_ever(10, one)


async def unread(port: int) -> None:
    """Forty connections with twenty pulls each, of which nothing is read."""
    pull = service.PullMessageRequest(batch_size=32)
    pull.group.name = GROUP
    pull.message_queue.CopyFrom(await queue_of(port, FULL_TOPIC))
    pull.filter_expression.type = definition.TAG
    pull.filter_expression.expression = "*"
    request = grpc_message(pull.SerializeToString())

    def flood() -> None:
        while True:
            connections = []
            for number in range(40):
                connection = RawConnection(port, window_bytes=0)
                block = call_headers(SERVICE + "PullMessage", who(f"unread@{number}@1"))
                for stream in range(1, 41, 2):
                    connection.send(
                        frame(HEADERS, END_HEADERS, stream, block)
                        + data_frames(stream, request, end=True)
                    )
                connections.append(connection)
            time.sleep(1)
            for connection in connections:
                connection.close()

    await asyncio.to_thread(flood)


async def resets(port: int) -> None:
    """Streams that are reset as soon as they are opened, on one connection after the other."""
    request = grpc_message(receive_request("resets", TOPIC).SerializeToString())
    block = call_headers(SERVICE + "ReceiveMessage", who("resets@1@1"))

    def flood() -> None:
        while True:
            with RawConnection(port, timeout_s=2.0) as connection:
                for begin in range(1, 50_000, 200):
                    data = b"".join(
                        frame(HEADERS, END_HEADERS, stream, block)
                        + data_frames(stream, request, end=True)
                        + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
                        for stream in range(begin, begin + 200, 2)
                    )
                    if not connection.send(data):
                        break

    await asyncio.to_thread(flood)


CASES: dict[str, Callable[[int], Coroutine[Any, Any, None]]] = {
    "receives": receives,
    "small_sends": small_sends,
    "large_sends": large_sends,
    "large_receives": large_receives,
    "routes": routes,
    "telemetry": telemetry,
    "forged_acks": forged_acks,
    "filters": filters,
    "unread": unread,
    "resets": resets,
}


# The measurement -------------------------------------------------------------------------------


async def fill(endpoint: str) -> None:
    """Put messages into the topic that costly filters and pulls look at."""
    async with Client(endpoint) as client:
        for _ in range(FULL_MESSAGES // 30):
            request = service.SendMessageRequest()
            for _ in range(30):
                message = add_message(request, client.new_message_id(), FULL_TOPIC)
                message.user_properties["a"] = "y" * FULL_BYTES
            await client.stub.SendMessage(request, metadata=client.metadata, timeout=30)


def shown(rates: Rates, seconds: float) -> dict[str, float]:
    """Return the figures of a phase."""
    per_second = {name: round(count / seconds, 1) for name, count in rates.calls.items()}
    return {**per_second, "failed": rates.failed, "slowest_s": round(rates.slowest_s, 3)}


def begin(case: str, port: int) -> subprocess.Popen[bytes]:
    """Start the misbehaving client."""
    return subprocess.Popen(
        [sys.executable, __file__, "--misbehave", case, "--port", str(port)],
        preexec_fn=lambda: os.nice(LOWEST_PRIORITY),
        stderr=subprocess.DEVNULL,
    )


async def measure(node: Standalone, case: str, seconds: float, rate: float) -> dict[str, Any]:
    """Measure the others before, beside and after one misbehaving client."""
    before = await work(node.endpoint, seconds, rate)
    abuser = begin(case, node.port)
    try:
        await asyncio.sleep(WARM_UP_S)
        beside = await work(node.endpoint, seconds, rate)
        misbehaved = abuser.poll() is None
    finally:
        abuser.kill()
        abuser.wait()
    await asyncio.sleep(WARM_UP_S)
    after = await work(node.endpoint, seconds, rate)
    shares = {
        name: round(count / statistics.mean([before.calls[name], after.calls[name]]), 2)
        for name, count in beside.calls.items()
    }
    return {
        "misbehaved_to_the_end": misbehaved,
        "before": shown(before, seconds),
        "beside": shown(beside, seconds),
        "after": shown(after, seconds),
        "share": shares,
    }


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--misbehave", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.misbehave:
        asyncio.run(CASES[options.misbehave](options.port))
        return
    result: dict[str, Any] = {"seconds": options.seconds, "rate": options.rate, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        node = Standalone(Path(folder) / "data")
        node.start()
        try:
            for topic in (TOPIC, FULL_TOPIC):
                node.create_topic(topic, "--queues", "1")
            node.create_group(GROUP)
            asyncio.run(fill(node.endpoint))
            for case in options.cases:
                result["cases"][case] = asyncio.run(
                    measure(node, case, options.seconds, options.rate)
                )
        finally:
            node.close()
    text = json.dumps(result, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
