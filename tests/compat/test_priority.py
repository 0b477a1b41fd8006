"""Priorities of the official clients: higher ones first, for simple and for push consumers."""

from hashlib import sha256

import pytest

from tests.compat.drivers import ClientError, Driver, Received
from tests.e2e.standalone import Standalone

# Few enough that the share of lower levels, one message of twenty, gives none.
PRIORITIES = (1, 6, 3, 7, 2, 100, 5, 4)
# The Node client leaves a priority of 0 out.
EXPECTED = (7, 100, 6, 5, 4, 3, 2, 1)


def body_of(priority: int) -> bytes:
    return b"priority %d" % priority


def shown(messages: list[Received]) -> list[int]:
    """Return the priorities that the bodies name."""
    names = {sha256(body_of(priority)).hexdigest(): priority for priority in PRIORITIES}
    return [names[message.body_sha256] for message in messages]


def test_a_simple_consumer_gets_higher_priorities_first(
    node: Standalone, driver: Driver, name: str
) -> None:
    """One by one; those above the last level are in order behind it."""
    topic = node.create_topic(name, "--type", "PRIORITY", "--queues", "8")
    producer = driver.producer(topic)
    for priority in PRIORITIES:
        producer.send(body_of(priority), priority=priority)
    consumer = driver.simple(name, {topic: "*"})
    got: list[Received] = []
    while len(got) < len(PRIORITIES):
        messages = consumer.receive(max_messages=1)
        for message in messages:
            consumer.ack(message)
        got += messages
    assert shown(got) == list(EXPECTED)


def test_a_push_consumer_gets_all_priorities(node: Standalone, driver: Driver, name: str) -> None:
    """It consumes many at a time, so its order is its own; a retry is a second attempt."""
    topic = node.create_topic(name, "--type", "PRIORITY", "--queues", "8")
    producer = driver.producer(topic)
    consumer = driver.push(name, {topic: "*"})
    for priority in PRIORITIES:
        producer.send(body_of(priority), priority=priority)
    got = consumer.delivered(len(PRIORITIES), 30.0)
    assert sorted(shown(got)) == sorted(PRIORITIES)


def test_a_topic_of_another_type_refuses_priorities(
    node: Standalone, driver: Driver, name: str
) -> None:
    """The client says so itself, from the route, or the server does."""
    topic = node.create_topic(name)
    producer = driver.producer(topic)
    with pytest.raises(ClientError) as refused:
        producer.send(body_of(1), priority=1)
    text = refused.value.text.lower()
    assert "type" in text and ("not match" in text or "priority" in text), refused.value
