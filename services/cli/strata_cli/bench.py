"""A small load: sends or receives for a while, and says how quick that was.

It uses one connection of grpcio and one process, so it shows that a cluster works and how long a
message takes; `make bench` measures how much a cluster can carry.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from apache.rocketmq.v2 import definition_pb2
from strata_cli import messaging
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.views import View

SENT_AT = "strata-bench-sent-at-us"
"""Property with the time of the send, in microseconds since 1970."""

MAX_SAMPLES = 1_000_000
"""Most latencies that are kept; the first ones."""

_REPORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The messages to send.

    Attributes:
        topic: where to.
        size: bytes of each body.
        rate: messages per second; 0: as many as possible.
        in_flight: most sends without an answer.
        duration_s: how long; 0: until `count`.
        count: how many; 0: until `duration_s`.
        groups: message groups of a FIFO topic, which are used in turn; 0: none.
    """

    topic: definition_pb2.Resource
    size: int
    rate: float
    in_flight: int
    duration_s: float
    count: int
    groups: int = 0


@dataclass(slots=True)
class Tally:
    """Counts and latencies while a load runs.

    Attributes:
        messages: that were sent or received.
        bytes: of their bodies.
        failed: calls that failed.
        last_failure: the text of the newest one.
        latencies_ms: of each message, up to `MAX_SAMPLES`.
        duplicates: messages that were delivered more than once.
    """

    messages: int = 0
    bytes: int = 0
    failed: int = 0
    last_failure: str = ""
    latencies_ms: list[float] = field(default_factory=list)
    duplicates: int = 0

    def add(self, size: int, latency_ms: float | None) -> None:
        """Count a message."""
        self.messages += 1
        self.bytes += size
        if latency_ms is not None and len(self.latencies_ms) < MAX_SAMPLES:
            self.latencies_ms.append(latency_ms)

    def fail(self, error: CliError) -> None:
        """Count a failed call."""
        self.failed += 1
        self.last_failure = str(error)

    def view(self, took_s: float) -> View:
        """Return the result."""
        took_s = max(took_s, 1e-9)
        ordered = sorted(self.latencies_ms)
        return {
            "messages": self.messages,
            "failed": self.failed,
            "last_failure": self.last_failure,
            "duration_ms": round(took_s * 1_000),
            "messages_per_s": round(self.messages / took_s, 1),
            "bytes_per_s": round(self.bytes / took_s),
            **{f"p{name}_ms": _quantile(ordered, share) for name, share in _SHARES},
            "max_ms": round(ordered[-1], 2) if ordered else None,
        }


_SHARES = (("50", 0.5), ("90", 0.9), ("99", 0.99), ("999", 0.999))


def send(client: AdminClient, load: Load, report: Callable[[str], None]) -> View:
    """Send messages and wait for the answers.

    A send that fails is counted; the first one of all ends the command, because then nothing works.

    Args:
        client: connection.
        load: what to send.
        report: is told once a second how far it is.

    Raises:
        CliError: the first send failed.
    """
    body = os.urandom(load.size)
    messaging.send(client, _outgoing(load, body, 0))
    tally, answers = Tally(), _Answers(load.in_flight)
    started_s = time.monotonic()
    next_report_s, sent = started_s + _REPORT_S, 0
    while True:
        now_s = time.monotonic()
        if (load.count and sent >= load.count) or (
            load.duration_s and now_s - started_s >= load.duration_s
        ):
            break
        if now_s >= next_report_s:
            report(f"{tally.messages} sent, {tally.failed} failed")
            next_report_s += _REPORT_S
        due_s = started_s + sent / load.rate if load.rate else now_s
        if due_s > now_s:
            time.sleep(min(due_s - now_s, _REPORT_S))
            continue
        answers.wait_for_room(client, tally, load.size)
        sent += 1
        # With a rate the latency counts from when the send was due: a stall delays all after it.
        answers.add(messaging.send_soon(client, _outgoing(load, body, sent)), due_s)
    answers.finish(client, tally, load.size)
    return {"topic": load.topic.name, "size": load.size, **tally.view(time.monotonic() - started_s)}


def receive(
    client: AdminClient,
    wanted: messaging.ConsumerWish,
    *,
    duration_s: float,
    count: int,
    report: Callable[[str], None],
) -> View:
    """Receive and ack messages; the latency is that between send and receive, of `send`'s messages.

    Args:
        client: connection.
        wanted: which messages.
        duration_s: how long; 0: until `count`.
        count: how many; 0: until `duration_s`.
        report: is told once a second how far it is.

    Raises:
        CliError: the broker refused the calls.
    """
    tally, started_s = Tally(), time.monotonic()
    next_report_s = started_s + _REPORT_S
    while not (count and tally.messages >= count):
        now_s = time.monotonic()
        if duration_s and now_s - started_s >= duration_s:
            break
        if now_s >= next_report_s:
            report(f"{tally.messages} received")
            next_report_s += _REPORT_S
        left = min(count - tally.messages, messaging.MAX_BATCH) if count else messaging.MAX_BATCH
        got = messaging.receive_some(client, wanted, count=left, wait_s=_REPORT_S)
        for message in got:
            tally.add(len(message.body), _age_ms(message))
            tally.duplicates += message.system_properties.delivery_attempt > 1
        acked = messaging.acknowledge(client, wanted.group, got)
        tally.failed += len(got) - len(acked)
    view = tally.view(time.monotonic() - started_s)
    return {
        "topic": wanted.topic.name,
        "group": wanted.group.name,
        **view,
        "redelivered": tally.duplicates,
    }


class _Answers:
    """Sends in flight; their answers come in any order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0
        self._done: queue.SimpleQueue[tuple[messaging.Sending, float, float]] = queue.SimpleQueue()

    def add(self, call: messaging.Sending, since_s: float) -> None:
        self._open += 1
        call.add_done_callback(lambda done: self._done.put((done, since_s, time.monotonic())))

    def wait_for_room(self, client: AdminClient, tally: Tally, size: int) -> None:
        """Count the answers that are there; wait for one if there are too many sends in flight."""
        while self._open >= self._limit or (self._open and not self._done.empty()):
            self._count(client, tally, size)

    def finish(self, client: AdminClient, tally: Tally, size: int) -> None:
        """Wait for all answers."""
        while self._open:
            self._count(client, tally, size)

    def _count(self, client: AdminClient, tally: Tally, size: int) -> None:
        call, since_s, at_s = self._done.get()
        self._open -= 1
        try:
            messaging.receipt_of(client, call)
        except CliError as error:
            tally.fail(error)
        else:
            tally.add(size, (at_s - since_s) * 1_000)


def _outgoing(load: Load, body: bytes, number: int) -> messaging.Outgoing:
    return messaging.Outgoing(
        topic=load.topic,
        body=body,
        tag="",
        keys=[],
        message_group=f"bench-{number % load.groups}" if load.groups else "",
        properties={SENT_AT: str(time.time_ns() // 1_000)},
    )


def _age_ms(message: definition_pb2.Message) -> float | None:
    """Return how long ago a message of `send` was sent; None for any other message."""
    sent_at = message.user_properties.get(SENT_AT, "")
    return (time.time_ns() // 1_000 - int(sent_at)) / 1_000 if sent_at.isdigit() else None


def _quantile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


def to_terminal(text: str) -> None:
    """Show how far it is, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
