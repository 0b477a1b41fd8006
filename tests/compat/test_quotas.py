"""Quotas as the official clients meet them: they hear the reason, or back off and get through."""

import time

import pytest

from tests.compat.drivers import ClientError, Driver
from tests.e2e.standalone import Standalone

TOO_MANY_REQUESTS = 42900
RATE_PER_S = 100


def test_the_reason_reaches_the_caller(node: Standalone, driver: Driver, name: str) -> None:
    """Far beyond a quota a send fails with TOO_MANY_REQUESTS and names the quota."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    producer.send()
    node.strata("quota", "set", "--topic", topic, "--messages-per-s", "1")

    with pytest.raises(ClientError) as refused:
        for _ in range(10):
            producer.send()

    assert refused.value.code == TOO_MANY_REQUESTS
    text = f"the quota of topic [{topic}] of the default namespace is 1 messages/s"
    assert text in refused.value.text


def test_producers_back_off(node: Standalone, driver: Driver, language: str, name: str) -> None:
    """A producer that sends as fast as it can is slowed down to the quota, and no send fails."""
    if language == "python":
        pytest.skip("5.1.2 hands TOO_MANY_REQUESTS to the caller without a second attempt")
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    node.strata("quota", "set", "--topic", topic, "--messages-per-s", str(RATE_PER_S))
    count = 2 * RATE_PER_S

    began_s = time.monotonic()
    message_ids = {producer.send().message_id for _ in range(count)}
    took_s = time.monotonic() - began_s

    (queue,) = node.strata("topic", "show", topic)["queue_status"]
    assert queue["next_offset"] == len(message_ids) == count
    # The burst of one second comes at once.
    assert took_s >= (count - RATE_PER_S) / RATE_PER_S * 0.9
