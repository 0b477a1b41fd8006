"""Retry by the consumer group's policy, then the dead-letter topic."""

import time

from tests.compat.collect import next_one
from tests.compat.drivers import Driver
from tests.e2e.standalone import Standalone


def test_push_consumer(node: Standalone, driver: Driver, name: str) -> None:
    """A message that always fails is delivered three times, then kept whole as a dead letter."""
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--max-attempts", "3", "--backoff-exp", "1000,2000,2")
    driver.producer(topic).send(
        b"poison", tag="bad", keys=["key-1"], properties={"reason": "unknown"}
    )
    consumer = driver.push(group, {topic: "*"}, failures=-1)
    letters = driver.push(f"{name}-letters", {f"%DLQ%{group}": "*"})

    delivered = consumer.delivered(3)
    [letter] = letters.delivered(1)
    after = consumer.delivered(0, 0)
    consumer.begin_close()
    letters.begin_close()

    assert [message.attempt for message in delivered] == [1, 2, 3]
    assert len({message.message_id for message in delivered}) == 1
    assert len(after) == 3
    assert letter.body_sha256 == delivered[0].body_sha256
    assert (letter.tag, letter.keys) == ("bad", ["key-1"])
    assert letter.properties == {"reason": "unknown"}


def test_simple_consumer(node: Standalone, driver: Driver, name: str) -> None:
    """A message never acknowledged becomes a dead letter after its attempts; later ones come."""
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--max-attempts", "2")
    producer = driver.producer(topic)
    producer.send(b"never acknowledged", keys=["key-1"])
    consumer = driver.simple(group, {topic: "*"})

    attempts = []
    for _ in range(2):
        message = next_one(consumer)
        attempts.append(message.attempt)
        consumer.change_invisible(message, 1_000)
    letters = driver.push(f"{name}-letters", {f"%DLQ%{group}": "*"})
    other = producer.send(b"other").message_id
    following = next_one(consumer)
    [letter] = letters.delivered(1)
    letters.begin_close()

    assert attempts == [1, 2]
    assert letter.keys == ["key-1"]
    assert following.message_id == other


def test_redriven(node: Standalone, driver: Driver, name: str) -> None:
    """A dead letter sent back comes to its consumers with a new id, and says what it was."""
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--max-attempts", "2")
    sent = driver.producer(topic).send(b"try again", tag="bad", keys=["key-1"])
    consumer = driver.simple(group, {topic: "*"})
    for _ in range(2):
        consumer.change_invisible(next_one(consumer), 1_000)
    deadline_s = time.monotonic() + 30
    redriven: list[dict[str, object]] = []
    while not redriven and time.monotonic() < deadline_s:
        redriven = node.strata("dlq", "redrive", group)["messages"]
    again = next_one(consumer)
    consumer.ack(again)

    assert [one["message_id"] for one in redriven] == [sent.message_id]
    assert again.message_id == redriven[0]["new_message_id"] != sent.message_id
    assert (again.tag, again.keys, again.attempt) == ("bad", ["key-1"], 1)
    assert again.properties == {
        "REDRIVE_COUNT": "1",
        "REDRIVE_DEAD_LETTER_TOPIC": f"%DLQ%{group}",
        "REDRIVE_MESSAGE_ID": sent.message_id,
    }
