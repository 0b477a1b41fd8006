"""Transactional messages: committed, rolled back, and asked about."""

import hashlib
from typing import Any

import pytest

from strata_testing import until_blocking
from tests.compat.collect import take
from tests.compat.drivers import Driver
from tests.e2e.standalone import Standalone

# The first check comes after 6 s.
CHECKED_WITHIN_S = 30.0


@pytest.fixture
def topic(node: Standalone, name: str) -> str:
    """A topic for transactions."""
    return node.create_topic(name, "--type", "TRANSACTION", "--queues", "4")


def test_commit_and_rollback(driver: Driver, topic: str) -> None:
    """A commit is delivered with the transaction's id, a rollback never; nothing before."""
    producer = driver.producer(topic, checker="unknown")
    consumer = driver.simple(f"{topic}-group", {topic: "*"})
    kept, gone = producer.send_half(b"kept"), producer.send_half(b"gone")
    assert consumer.receive() == []
    producer.commit(kept)
    producer.rollback(gone)
    (message,) = take(consumer, 1)
    assert message.message_id == kept.message_id
    assert message.body_sha256 == hashlib.sha256(b"kept").hexdigest()
    assert message.properties["__transactionId__"] == kept.transaction_id
    # Ending it again changes nothing.
    producer.commit(kept)
    producer.rollback(gone)
    assert consumer.receive() == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("answer", ["commit", "rollback"])
def test_another_producer_is_asked(
    node: Standalone, driver: Driver, topic: str, answer: str
) -> None:
    """The producer that began the transaction is gone; one of the same topic ends it."""
    first = driver.producer(topic, checker="unknown")
    half = first.send_half(b"orphan")
    first.close()
    second = driver.producer(topic, checker=answer)
    consumer = driver.simple(f"{topic}-group", {topic: "*"})
    assert second.checked(1, CHECKED_WITHIN_S)[:1] == [half.message_id]
    if answer == "commit":
        (message,) = take(consumer, 1)
        assert message.message_id == half.message_id
    else:
        assert consumer.receive() == []
    assert node.strata("transaction", "list", "--topic", topic)["transactions"] == []


@pytest.mark.timeout(120)
def test_a_producer_that_does_not_know(node: Standalone, driver: Driver, topic: str) -> None:
    """The transaction waits on; its own producer, or an operator, ends it later."""
    producer = driver.producer(topic, checker="unknown")
    halves = [producer.send_half(b"mine"), producer.send_half(b"the operator's")]
    checked = producer.checked(2, CHECKED_WITHIN_S)
    assert sorted(checked) == sorted(half.message_id for half in halves)
    producer.commit(halves[0])

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = node.strata("transaction", "show", halves[1].transaction_id)
        return found

    # The broker reports each check that it gave to a producer.
    until_blocking(lambda: shown()["check_count"] == 1)
    assert shown()["message_id"] == halves[1].message_id
    node.strata("transaction", "commit", halves[1].transaction_id)
    consumer = driver.simple(f"{topic}-group", {topic: "*"})
    assert {message.message_id for message in take(consumer, 2)} == {
        half.message_id for half in halves
    }
