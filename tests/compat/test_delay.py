"""Delay messages: delivered at their time, and recalled before it."""

import time

import pytest

from tests.compat.collect import take
from tests.compat.drivers import ClientError, Driver
from tests.e2e.standalone import Standalone

SECOND_MS = 1_000


def in_seconds(seconds: int) -> int:
    """A time that every client can say: the Python client knows whole seconds only."""
    return (time.time_ns() // 1_000_000 // SECOND_MS + seconds) * SECOND_MS


def test_comes_at_its_time(node: Standalone, driver: Driver, name: str) -> None:
    """Not before it; one whose time is past comes, too."""
    topic = node.create_topic(name, "--type", "DELAY", "--queues", "4")
    producer = driver.producer(topic)
    consumer = driver.simple(f"{name}-group", {topic: "*"}, await_ms=5_000)
    due_ms = [in_seconds(seconds) for seconds in (6, 3, -10)]
    sent = {
        producer.send(b"at %d" % deliver_at_ms, deliver_at_ms=deliver_at_ms).message_id: (
            deliver_at_ms
        )
        for deliver_at_ms in due_ms
    }
    came: set[int] = set()
    while len(came) < len(due_ms):
        for message in take(consumer, 1):
            assert time.time_ns() // 1_000_000 >= sent[message.message_id]
            came.add(sent[message.message_id])


def test_recall(node: Standalone, driver: Driver, name: str) -> None:
    """A recalled message never comes; a delivered one is not recalled."""
    topic = node.create_topic(name, "--type", "DELAY", "--queues", "4")
    producer = driver.producer(topic)
    consumer = driver.simple(f"{name}-group", {topic: "*"})
    kept = producer.send(b"kept", deliver_at_ms=in_seconds(8))
    gone = producer.send(b"gone", deliver_at_ms=in_seconds(8))
    assert kept.recall_handle
    assert gone.recall_handle
    assert producer.recall(gone.recall_handle) == gone.message_id
    assert [message.message_id for message in take(consumer, 1)] == [kept.message_id]
    with pytest.raises(ClientError) as refused:
        producer.recall(kept.recall_handle)
    assert "INVALID_RECEIPT_HANDLE" in refused.value.text
    assert consumer.receive() == []


def test_too_far(node: Standalone, driver: Driver, name: str) -> None:
    """40 days are the limit."""
    topic = node.create_topic(name, "--type", "DELAY")
    producer = driver.producer(topic)
    with pytest.raises(ClientError) as refused:
        producer.send(deliver_at_ms=in_seconds(41 * 86_400))
    assert refused.value.code == 40012
    assert producer.send(deliver_at_ms=in_seconds(39 * 86_400)).recall_handle
