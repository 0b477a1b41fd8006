"""Push consumers: delivery, redelivery after a failure, sharing within a consumer group."""

import time
from collections import Counter

import pytest

from tests.compat.drivers import Driver
from tests.e2e.standalone import Standalone

TRIES = 6
"""Messages of which one at least is failed by a client that knows its new settings."""


def test_all_delivered(node: Standalone, driver: Driver, name: str) -> None:
    """A push consumer gets every message of all queues once, sent before and after its start."""
    topic = node.create_topic(name, "--queues", "8")
    producer = driver.producer(topic)
    before = [producer.send().message_id for _ in range(10)]
    consumer = driver.push(name, {topic: "*"})
    after = [producer.send().message_id for _ in range(10)]

    delivered = consumer.delivered(20)
    consumer.begin_close()

    assert sorted(message.message_id for message in delivered) == sorted(before + after)
    assert {message.attempt for message in delivered} == {1}


def test_failed_comes_again(node: Standalone, driver: Driver, name: str) -> None:
    """A message whose listener failed is delivered again as attempt 2; the others are not."""
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--backoff-exp", "1000,5000,2")
    sent = driver.producer(topic).send(b"fails once").message_id
    consumer = driver.push(group, {topic: "*"}, failures=1)

    delivered = consumer.delivered(2)
    consumer.begin_close()

    assert [(message.message_id, message.attempt) for message in delivered] == [
        (sent, 1),
        (sent, 2),
    ]


def test_customized_backoff(node: Standalone, driver: Driver, name: str) -> None:
    """Pauses from a list, one per attempt: no attempt comes before its pause is over."""
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--backoff-ms", "1000,2000")
    consumer = driver.push(group, {topic: "*"}, failures=2)
    began_s = time.monotonic()
    sent = driver.producer(topic).send(b"fails twice").message_id

    delivered = consumer.delivered(3)
    took_s = time.monotonic() - began_s
    consumer.begin_close()

    assert [(message.message_id, message.attempt) for message in delivered] == [
        (sent, attempt) for attempt in (1, 2, 3)
    ]
    assert took_s >= 3.0


def test_changed_policy_holds_at_once(
    node: Standalone, driver: Driver, language: str, name: str
) -> None:
    """A consumer that is connected takes over a new retry policy of its consumer group."""
    if language == "python":
        pytest.skip("5.1.2 fails on its metrics at the first settings and reads no more of them")
    topic = node.create_topic(name, "--queues", "1")
    group = node.create_group(name, "--backoff-exp", "600000,600000,1")
    producer = driver.producer(topic)
    first = producer.send(b"tells that the consumer has its settings").message_id
    consumer = driver.push(group, {topic: "*"}, failures=1)
    assert consumer.delivered(1)[0].message_id == first
    node.strata("group", "update", group, "--backoff-exp", "1000,1000,1")
    # The frame is on its way when the command returns; nothing shows that a client has read it. A
    # message that it has failed before comes again in ten minutes, and the next one in a second.
    came: list[tuple[str, int]] = []
    for count in range(2, TRIES + 2):
        sent = producer.send(b"fails once").message_id
        consumer.delivered(count)
        delivered = consumer.delivered(count + 1, timeout_s=5)
        came = [(message.message_id, message.attempt) for message in delivered]
        if (sent, 2) in came:
            break
    consumer.begin_close()

    assert came[0] == (first, 1)
    assert came[-2:] == [(sent, 1), (sent, 2)]
    assert [attempt for _, attempt in came].count(2) == 1


def test_members_share(node: Standalone, driver: Driver, name: str) -> None:
    """Two members of one consumer group get each message once between them."""
    topic = node.create_topic(name, "--queues", "2")
    producer = driver.producer(topic)
    members = [driver.push(name, {topic: "*"}) for _ in range(2)]
    sent = [producer.send().message_id for _ in range(20)]
    # All have been delivered once a second consumer group, behind the first, has them.
    witness = driver.push(f"{name}-witness", {topic: "*"})
    witness.delivered(len(sent))

    counts: Counter[str] = Counter()
    for _ in range(100):
        counts = Counter(
            message.message_id for member in members for message in member.delivered(0, 0)
        )
        if len(counts) == len(sent):
            break
        members[0].delivered(len(sent), timeout_s=0.2)
    for consumer in (*members, witness):
        consumer.begin_close()

    assert counts == Counter(sent)
