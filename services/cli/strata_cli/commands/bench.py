"""The commands of `strata bench`; `topic` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import math
import sys
from typing import Annotated

from cyclopts import App, Parameter

from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common, seconds
from strata_cli.output import show
from strata_cli.views import View

Topic = Annotated[str, Parameter(help="Name of the topic; it is not created.")]

MAX_BODY_BYTES = 4 * 1024 * 1024

app = App(name="bench", help="A small load, and how quick it was.")


@app.command
def send(
    topic: Topic,
    /,
    *,
    size: int = 256,
    rate: float = 0.0,
    duration: str = "",
    count: int = 0,
    in_flight: int = 64,
    message_groups: int = 0,
    common: Common = COMMON,
) -> None:
    """Send messages, and show throughput and latency. Use a topic of its own.

    It is one process and one connection: it does not show how much a cluster can carry.

    For instance: strata bench send load --rate 500 --size 1024 --duration 30s

    Args:
        size: Bytes of each body.
        rate: Messages per second; 0: as many as possible.
        duration: End after this time; default: 10s, if no count is given.
        count: End after this many messages.
        in_flight: Most sends without an answer.
        message_groups: Send FIFO messages of this many message groups in turn.
    """
    from apache.rocketmq.v2 import definition_pb2
    from strata_cli import bench
    from strata_cli.client import connect

    if not 1 <= size <= MAX_BODY_BYTES:
        raise UsageError(f"--size {size}: write 1 to {MAX_BODY_BYTES}")
    if not 0 <= rate < math.inf or in_flight < 1 or message_groups < 0:
        raise UsageError("--rate and --message-groups are 0 or more, --in-flight is 1 or more")
    duration_s = _end_of(duration, count)
    resource = definition_pb2.Resource(resource_namespace=common.namespace, name=topic)
    load = bench.Load(
        topic=resource,
        size=size,
        rate=rate,
        in_flight=in_flight,
        duration_s=duration_s,
        count=count,
        groups=message_groups,
    )
    with connect(common) as client:
        _show(bench.send(client, load, bench.to_terminal), common)


@app.command
def receive(
    topic: Topic,
    /,
    *,
    group: str = "strata-bench",
    duration: str = "",
    count: int = 0,
    common: Common = COMMON,
) -> None:
    """Receive and ack messages, and show throughput and the latency from send to receive.

    The latency is that of messages of strata bench send; both clocks count if they are two.

    For instance: strata bench receive load --duration 30s -o json

    Args:
        group: Consumer group.
        duration: End after this time; default: 10s, if no count is given.
        count: End after this many messages.
    """
    from apache.rocketmq.v2 import definition_pb2
    from strata_cli import bench
    from strata_cli.client import connect
    from strata_cli.messaging import ConsumerWish

    duration_s = _end_of(duration, count)
    wanted = ConsumerWish(
        topic=definition_pb2.Resource(resource_namespace=common.namespace, name=topic),
        group=definition_pb2.Resource(resource_namespace=common.namespace, name=group),
    )
    with connect(common) as client:
        result = bench.receive(
            client, wanted, duration_s=duration_s, count=count, report=bench.to_terminal
        )
        _show(result, common)


def _end_of(duration: str, count: int) -> float:
    """Return how long a load goes on, in seconds; 0: until the count is reached."""
    if count < 0:
        raise UsageError(f"--count {count}: give 0 or more")
    if not duration:
        return 0.0 if count else 10.0
    duration_s = seconds(duration)
    if not duration_s and not count:
        raise UsageError(f"--duration {duration}: give more, or --count")
    return duration_s


def _show(result: View, common: Common) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    show(result, common)
