"""Errors as users of each client see them: by the server's code and text, or the client's own."""

import re
from collections.abc import Callable

import pytest

from tests.compat.drivers import MIB, ClientError, Driver
from tests.e2e.standalone import Standalone

TOPIC_NOT_FOUND = 40402
ILLEGAL_INVISIBLE_TIME = 40011
ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
MESSAGE_BODY_EMPTY = 41302
MESSAGE_PROPERTIES_TOO_LARGE = 43101


def raised(call: Callable[[], object]) -> ClientError:
    """Return the error of a call that must fail."""
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value


def test_unknown_topic(node: Standalone, driver: Driver, language: str, name: str) -> None:
    """A send to an unknown topic fails with the text the original server gives."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(topic=f"{name}-unknown"))

    if language == "python":  # it hides the server's answer
        assert error.text == f"failed to fetch topic:{name}-unknown route."
    else:
        assert error.code == TOPIC_NOT_FOUND
        assert f"No topic route info in name server for the topic: {name}-unknown" in error.text


def test_wrong_type(node: Standalone, driver: Driver, name: str) -> None:
    """A message with a message group is refused for a topic of type NORMAL."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(group="g"))

    # All clients compare with the types in the route before they send.
    assert re.search("message type not match", error.text, re.IGNORECASE)


def test_empty_body(node: Standalone, driver: Driver, language: str, name: str) -> None:
    """An empty body is refused: by two clients themselves, for the others by the server."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(b""))

    if language in ("python", "java"):
        assert re.search("body should not be (blank|empty)", error.text)
    else:
        assert error.code == MESSAGE_BODY_EMPTY


def test_body_too_large(node: Standalone, driver: Driver, name: str) -> None:
    """A body of one byte over 4 MiB is refused; the clients know the limit from the settings."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(b"x", size=4 * MIB + 1))

    assert "exceeds the threshold, max size=4194304" in error.text


def test_properties_too_large(node: Standalone, driver: Driver, name: str) -> None:
    """Properties of one byte over 16 KiB are refused by the server."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(properties={"n": "v" * 16_384}))

    assert error.code == MESSAGE_PROPERTIES_TOO_LARGE


def test_reserved_property(node: Standalone, driver: Driver, name: str) -> None:
    """A property with a reserved name is refused by the server."""
    producer = driver.producer(node.create_topic(name, "--queues", "1"))

    error = raised(lambda: producer.send(properties={"UNIQ_KEY": "mine"}))

    assert error.code == ILLEGAL_MESSAGE_PROPERTY_KEY


def test_invisible_time_too_small(node: Standalone, driver: Driver, name: str) -> None:
    """A receive with an invisible time under 10 s is refused with the original text."""
    topic = node.create_topic(name, "--queues", "1")
    consumer = driver.simple(name, {topic: "*"})

    error = raised(lambda: consumer.receive(invisible_ms=5_000))

    assert error.code == ILLEGAL_INVISIBLE_TIME
    assert "the invisibleTime is too small. min is 10000" in error.text
