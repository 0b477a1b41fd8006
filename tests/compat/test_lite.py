"""Lite topics with the official clients: sends, lite push consumers, what is refused."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256

import pytest

from tests.compat.drivers import ClientError, Driver, Received
from tests.e2e.standalone import Standalone

# Clients of these languages, at their pinned versions, have a lite push consumer.
pytestmark = pytest.mark.parametrize("language", ["java", "node"], indirect=True)


def body_of(number: int) -> bytes:
    return b"lite %d" % number


def by_lite_topic(messages: list[Received], count: int) -> dict[str | None, list[int]]:
    """Return the numbers of messages, in order of delivery, by lite topic."""
    numbers = {sha256(body_of(number)).hexdigest(): number for number in range(count)}
    found: defaultdict[str | None, list[int]] = defaultdict(list)
    for one in messages:
        found[one.lite_topic].append(numbers[one.body_sha256])
    return dict(found)


def test_a_lite_consumer_gets_what_it_subscribed_to(
    node: Standalone, driver: Driver, name: str
) -> None:
    """In order; before and after its subscription; nothing after it has unsubscribed."""
    topic = node.create_topic(name, "--type", "LITE", "--queues", "4")
    # Without it the client consumes the messages of one answer at the same time.
    node.create_group(name, "--fifo", "--lite-topic", topic)
    producer = driver.producer(topic)
    for number in range(3):
        producer.send(body_of(number), lite_topic="a")
        producer.send(body_of(number + 3), lite_topic="b")
    consumer = driver.lite(name, topic)
    consumer.subscribe("a")
    consumer.subscribe("late")
    assert by_lite_topic(consumer.delivered(3), 6) == {"a": [0, 1, 2]}
    producer.send(body_of(6), lite_topic="late")
    assert by_lite_topic(consumer.delivered(4), 7) == {"a": [0, 1, 2], "late": [6]}
    consumer.unsubscribe("late")
    producer.send(body_of(7), lite_topic="late")
    consumer.subscribe("b")
    assert by_lite_topic(consumer.delivered(7), 8) == {
        "a": [0, 1, 2],
        "late": [6],
        "b": [3, 4, 5],
    }
    assert consumer.lite_topics() == ["a", "b"]


def test_a_failed_message_comes_again(node: Standalone, driver: Driver, name: str) -> None:
    """As another attempt, and before the messages behind it."""
    topic = node.create_topic(name, "--type", "LITE", "--queues", "4")
    node.create_group(name, "--lite-topic", topic, "--backoff-ms", "1000")
    producer = driver.producer(topic)
    consumer = driver.lite(name, topic, failures=1)
    consumer.subscribe("a")
    producer.send(body_of(0), lite_topic="a")
    got = consumer.delivered(2)
    assert by_lite_topic(got, 1) == {"a": [0, 0]}
    assert [one.attempt for one in got] == [1, 2]


def test_what_is_refused(node: Standalone, driver: Driver, name: str) -> None:
    """A lite topic at a topic of another type, and a message of a parent without one."""
    plain = node.create_topic(f"{name}-plain")
    parent = node.create_topic(name, "--type", "LITE", "--queues", "4")
    producer = driver.producer(plain, parent)
    with pytest.raises(ClientError):
        producer.send(body_of(0), topic=plain, lite_topic="a")
    with pytest.raises(ClientError):
        producer.send(body_of(0), topic=parent)
