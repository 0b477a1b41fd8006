"""Producer and simple consumer: what is sent comes back, once, until it is acknowledged."""

import hashlib

import pytest

from tests.compat.collect import next_one, take
from tests.compat.conftest import DriverPool
from tests.compat.drivers import LANGUAGES, MIB, Driver, installed
from tests.e2e.standalone import Standalone

# A 4 MiB body makes a message over the 4 MiB that the Node client receives at most.
LARGEST_BODY = {"python": 4 * MIB, "node": 4 * MIB - 64 * 1024, "java": 4 * MIB, "go": 4 * MIB}
PROPERTIES_LIMIT = 16 * 1024


def test_every_field_comes_back(node: Standalone, driver: Driver, name: str) -> None:
    """A message keeps its id, body, tag, keys and properties, whatever script they are in."""
    topic = node.create_topic(name, "--queues", "1")
    properties = {"color": "blue", "城市": "北京", "mood": "🚀🐙"}
    keys = ["order-1", "订单", "🔑"]

    receipt = driver.producer(topic).send(
        "body ✓".encode(), tag="tagged", keys=keys, properties=properties
    )
    [message] = take(driver.simple(name, {topic: "*"}), 1)

    assert message.message_id == receipt.message_id
    assert receipt.transaction_id in (None, receipt.message_id)
    assert receipt.offset in (None, 0)
    assert message.offset in (None, 0)
    assert (message.topic, message.tag, message.group) == (topic, "tagged", None)
    assert message.keys == sorted(keys)
    assert message.properties == properties
    assert message.body_sha256 == hashlib.sha256("body ✓".encode()).hexdigest()
    assert message.attempt == 1


def test_each_message_once(node: Standalone, driver: Driver, name: str) -> None:
    """Messages over all queues of a topic are each received exactly once when acknowledged."""
    topic = node.create_topic(name, "--queues", "2")
    producer = driver.producer(topic)
    sent = [producer.send(b"%d" % number).message_id for number in range(24)]

    received = take(driver.simple(name, {topic: "*"}), len(sent))

    assert sorted(message.message_id for message in received) == sorted(sent)


def test_two_groups_each_get_all(node: Standalone, driver: Driver, name: str) -> None:
    """Two consumer groups of one topic each receive every message."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    sent = sorted(producer.send().message_id for _ in range(5))

    for group in (f"{name}-1", f"{name}-2"):
        received = take(driver.simple(group, {topic: "*"}), len(sent))
        assert sorted(message.message_id for message in received) == sent


def test_acknowledged_is_gone(node: Standalone, driver: Driver, name: str) -> None:
    """An acknowledged message does not come again; the next one does."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    consumer = driver.simple(name, {topic: "*"})
    first = producer.send(b"first").message_id
    [taken] = take(consumer, 1)
    second = producer.send(b"second").message_id

    assert taken.message_id == first
    assert next_one(consumer).message_id == second


def test_change_invisible(node: Standalone, driver: Driver, name: str) -> None:
    """A message made visible early comes again as attempt 2, and its new handle acknowledges it."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    consumer = driver.simple(name, {topic: "*"})
    sent = producer.send(b"again").message_id

    first = next_one(consumer, invisible_ms=60_000)
    consumer.change_invisible(first, 1_000)
    second = next_one(consumer)
    consumer.ack(second)
    last = producer.send(b"last").message_id

    assert [first.message_id, second.message_id] == [sent, sent]
    assert [first.attempt, second.attempt] == [1, 2]
    assert next_one(consumer).message_id == last


def test_largest_body(node: Standalone, driver: Driver, language: str, name: str) -> None:
    """The largest body a client can take comes back unchanged."""
    topic = node.create_topic(name, "--queues", "1")
    size = LARGEST_BODY[language]
    driver.producer(topic).send(b"0123456789abcdef", size=size)

    [message] = take(driver.simple(name, {topic: "*"}), 1)

    assert message.body_size == size
    expected = hashlib.sha256(b"0123456789abcdef" * (size // 16)).hexdigest()
    assert message.body_sha256 == expected


def test_largest_properties(node: Standalone, driver: Driver, name: str) -> None:
    """Properties of exactly 16 KiB, names counted, come back unchanged."""
    topic = node.create_topic(name, "--queues", "1")
    properties = {"name": "v" * (PROPERTIES_LIMIT - len("name"))}
    driver.producer(topic).send(properties=properties)

    [message] = take(driver.simple(name, {topic: "*"}), 1)

    assert message.properties == properties


def test_languages_read_each_other(
    node: Standalone, driver: Driver, drivers: DriverPool, name: str
) -> None:
    """A consumer of each language reads what producers of all languages sent."""
    writers = [language for language in LANGUAGES if installed(language)]
    if len(writers) < 2:
        pytest.skip("needs the clients of two languages: make compat")
    topic = node.create_topic(name, "--queues", "1")
    sent = {
        drivers.get(language)
        .producer(topic)
        .send(properties={"from": language})
        .message_id: language
        for language in writers
    }

    received = take(driver.simple(name, {topic: "*"}), len(sent))

    assert {message.message_id: message.properties["from"] for message in received} == sent
