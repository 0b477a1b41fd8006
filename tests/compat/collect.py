"""Waiting for messages: conditions with a deadline, never a fixed sleep."""

import time
from collections.abc import Callable

from tests.compat.drivers import ClientError, Receipt, Received, SimpleConsumer

DEADLINE_S = 90.0


class MissingError(AssertionError):
    """The awaited messages did not come."""


def take(consumer: SimpleConsumer, count: int) -> list[Received]:
    """Receive and acknowledge until `count` messages came; return all that came."""
    return take_until(consumer, lambda messages: len(messages) >= count)


def take_until(
    consumer: SimpleConsumer,
    enough: Callable[[list[Received]], bool],
    *,
    after_restart: bool = False,
    deadline_s: float = DEADLINE_S,
) -> list[Received]:
    """Receive and acknowledge until `enough` says so; return all that came.

    After a restart of the server calls may fail for a while: a client's channel remembers a
    refused connection until it tries again.
    """
    messages: list[Received] = []
    # For each call: how many messages there were before it, and when it began.
    calls: list[tuple[int, float]] = []
    began = time.monotonic()
    while not enough(messages):
        calls.append((len(messages), round(time.monotonic() - began, 1)))
        if calls[-1][1] > deadline_s:
            seen = [message.message_id for message in messages]
            raise MissingError(f"only {len(messages)} came: calls {calls}, ids {seen}")
        try:
            for message in consumer.receive():
                consumer.ack(message)
                messages.append(message)
        except ClientError:
            if not after_restart:
                raise
    return messages


def next_one(consumer: SimpleConsumer, invisible_ms: int = 20_000) -> Received:
    """Receive until one message comes; it is not acknowledged."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if messages := consumer.receive(1, invisible_ms):
            assert len(messages) == 1
            return messages[0]
    raise MissingError("no message came")


def until_sent(send: Callable[[], Receipt]) -> Receipt:
    """Repeat a send that may fail while the server restarts."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return send()
        except ClientError:
            if time.monotonic() > deadline:
                raise
