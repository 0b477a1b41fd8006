"""Names of topics, consumer groups and namespaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.names import (
    TRACE_TOPIC,
    check_consumer_group,
    check_namespace,
    check_new_topic,
    check_topic,
    dead_letter_topic,
    is_dead_letter_topic,
)


@pytest.mark.parametrize("name", ["a", "A-b_C%1|2", "t" * 127, "%DLQ%" + "g" * 120])
def test_good_topics_pass(name: str) -> None:
    """The charset of RocketMQ up to 127 characters, dead-letter topics included."""
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank"),
        (" ", "The specified topic is blank"),
        ("t" * 128, "The specified topic is longer than topic max length 127."),
        (
            "bad topic!",
            "The specified topic[bad topic!] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "a\n",
            "The specified topic[a\n] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("TBW102", "cannot access system topic"),
        ("rmq_sys_wheel", "cannot access system topic"),
    ],
)
def test_bad_topics_are_refused(name: str, text: str) -> None:
    """Each with the text that the real product gives."""
    with pytest.raises(RequestError) as caught:
        check_topic(name)
    assert (caught.value.code, caught.value.text) == (Code.ILLEGAL_TOPIC, text)


def test_one_system_topic_may_be_made() -> None:
    """Remoting clients send their traces there; gRPC clients may not name it, as in RocketMQ."""
    check_new_topic(TRACE_TOPIC)
    for check, name in ((check_topic, TRACE_TOPIC), (check_new_topic, "RMQ_SYS_OTHER")):
        with pytest.raises(RequestError, match="cannot access system topic"):
            check(name)


@pytest.mark.parametrize(
    ("check", "name", "code"),
    [
        (check_consumer_group, "", Code.ILLEGAL_CONSUMER_GROUP),
        (check_consumer_group, "g" * 121, Code.ILLEGAL_CONSUMER_GROUP),
        (check_consumer_group, "grüße", Code.ILLEGAL_CONSUMER_GROUP),
        (check_consumer_group, "CID_RMQ_SYS_TRANS", Code.ILLEGAL_CONSUMER_GROUP),
        (check_namespace, "n" * 128, Code.BAD_REQUEST),
        (check_namespace, "a b", Code.BAD_REQUEST),
    ],
)
def test_bad_groups_and_namespaces_are_refused(
    check: Callable[[str], None], name: str, code: Code
) -> None:
    """Blank, long, foreign or reserved names never reach the metadata."""
    with pytest.raises(RequestError) as caught:
        check(name)
    assert caught.value.code is code


def test_good_groups_and_namespaces_pass() -> None:
    """The default namespace is empty."""
    check_consumer_group("g" * 120)
    check_namespace("")
    check_namespace("tenant-1")


def test_a_dead_letter_topic_is_known_by_its_prefix() -> None:
    """The name is RocketMQ's own: %DLQ% and the group."""
    assert dead_letter_topic("group") == "%DLQ%group"
    assert is_dead_letter_topic("%DLQ%group")
    assert not is_dead_letter_topic("group")
