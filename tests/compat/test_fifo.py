"""Order per message group, kept while messages are delivered again."""

import hashlib
import time

from tests.compat.collect import DEADLINE_S, next_one
from tests.compat.drivers import Driver, Producer, Received
from tests.e2e.standalone import Standalone

FIFO_GROUP = ("--fifo", "--max-attempts", "3", "--backoff-exp", "1000,5000,2")


def send_in_order(producer: Producer, groups: str, count: int) -> dict[str, str]:
    """Send `count` messages to each message group, in turn; return message id -> "a0"."""
    return {
        producer.send(f"{group}{number}".encode(), group=group).message_id: f"{group}{number}"
        for number in range(count)
        for group in groups
    }


def of_group(labels: list[str], group: str) -> list[str]:
    """Return what came of one message group, in the order it came."""
    return [label for label in labels if label.startswith(group)]


def test_push_keeps_order_under_redelivery(node: Standalone, driver: Driver, name: str) -> None:
    """Each message that failed is delivered again before the next one of its message group."""
    topic = node.create_topic(name, "--type", "FIFO", "--queues", "4")
    group = node.create_group(name, *FIFO_GROUP)
    sent = send_in_order(driver.producer(topic), "ab", 3)
    consumer = driver.push(group, {topic: "*"}, failures=1)

    delivered = consumer.delivered(2 * len(sent), timeout_s=60)
    consumer.begin_close()

    labels = [sent[message.message_id] for message in delivered]
    assert of_group(labels, "a") == ["a0", "a0", "a1", "a1", "a2", "a2"]
    assert of_group(labels, "b") == ["b0", "b0", "b1", "b1", "b2", "b2"]
    assert {message.group for message in delivered} == {"a", "b"}


def test_simple_consumer_waits_for_the_first(node: Standalone, driver: Driver, name: str) -> None:
    """While a message is out, nothing later of its message group comes; other groups go on."""
    topic = node.create_topic(name, "--type", "FIFO", "--queues", "1")
    group = node.create_group(name, *FIFO_GROUP)
    sent = send_in_order(driver.producer(topic), "ab", 2)
    consumer = driver.simple(group, {topic: "*"})

    labels: list[str] = []
    held: Received | None = None
    deadline = time.monotonic() + DEADLINE_S
    while len(labels) < len(sent) + 1:
        assert time.monotonic() < deadline, labels
        message = next_one(consumer)
        labels.append(sent[message.message_id])
        if held is None and message.group == "a":
            held = message
            consumer.change_invisible(message, 1_000)
        else:
            consumer.ack(message)

    assert of_group(labels, "a") == ["a0", "a0", "a1"]
    assert of_group(labels, "b") == ["b0", "b1"]


def test_dead_letter_before_the_next(
    node: Standalone, driver: Driver, language: str, name: str
) -> None:
    """A message that fails three times becomes a dead letter; only then comes its next one."""
    topic = node.create_topic(name, "--type", "FIFO", "--queues", "1")
    group = node.create_group(name, *FIFO_GROUP)
    sent = send_in_order(driver.producer(topic), "a", 2)
    consumer = driver.push(group, {topic: "*"}, failures=-1)
    letters = driver.push(f"{name}-letters", {f"%DLQ%{group}": "*"})

    delivered = consumer.delivered(4)
    letter = letters.delivered(1)[0]
    consumer.begin_close()
    letters.begin_close()

    assert [sent[message.message_id] for message in delivered[:4]] == ["a0", "a0", "a0", "a1"]
    # The Python client counts no attempts of the retries it makes by itself.
    attempts = [1, 1, 1] if language == "python" else [1, 2, 3]
    assert [message.attempt for message in delivered[:3]] == attempts
    assert letter.body_sha256 == hashlib.sha256(b"a0").hexdigest()
