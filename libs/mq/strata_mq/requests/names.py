"""Checks of names of topics, consumer groups and namespaces, with RocketMQ's own texts."""

from __future__ import annotations

import re

from strata_mq.requests.errors import Code, RequestError

MAX_TOPIC_LENGTH = 127
MAX_CONSUMER_GROUP_LENGTH = 120
MAX_NAMESPACE_LENGTH = 127

DEAD_LETTER_PREFIX = "%DLQ%"
RETRY_PREFIX = "%RETRY%"
"""Begin of the topic in which messages wait that a pull consumer sent back."""

TABLE_PREFIX = "%KV%"

_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")

_RESERVED_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "CHECKPOINT_TOPIC",
    }
)
_RESERVED_TOPIC_PREFIXES = ("RMQ_SYS_", "rmq_sys_")
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Topic to which remoting clients send traces of messages, if it exists; nobody else uses it."""

_RESERVED_GROUP_PREFIX = "CID_RMQ_SYS_"
OWN_PREFIX = "__strata"
"""Begin of names that only StrataMQ itself makes and uses."""

_OWN_TOPIC_PREFIXES = (DEAD_LETTER_PREFIX, TABLE_PREFIX, OWN_PREFIX)

REDRIVE_GROUP = "strata-redrive"
"""Consumer group in which dead letters are taken to be sent again."""

TRANSACTION_DEAD_LETTER_GROUP = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Consumer group whose dead-letter topic takes the transactions of a namespace that are given up.

RocketMQ has them in a topic of this name that no client may read."""

_OWN_GROUPS = frozenset((REDRIVE_GROUP, TRANSACTION_DEAD_LETTER_GROUP))


def check_topic(name: str) -> None:
    """Check a topic's name, which may be that of a dead-letter topic.

    Raises:
        RequestError: ILLEGAL_TOPIC: blank, too long, illegal characters, or reserved.
    """
    _check(name, "The specified topic", "topic", MAX_TOPIC_LENGTH, Code.ILLEGAL_TOPIC)
    if name in _RESERVED_TOPICS or name.startswith(_RESERVED_TOPIC_PREFIXES):
        raise RequestError(Code.ILLEGAL_TOPIC, "cannot access system topic")


def check_consumer_group(name: str) -> None:
    """Check a consumer group's name.

    Raises:
        RequestError: ILLEGAL_CONSUMER_GROUP: blank, too long, illegal characters, or reserved.
    """
    _check(
        name,
        "the specified group",
        "group",
        MAX_CONSUMER_GROUP_LENGTH,
        Code.ILLEGAL_CONSUMER_GROUP,
    )
    if name.startswith(_RESERVED_GROUP_PREFIX):
        raise RequestError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")


def check_new_topic(name: str) -> None:
    """Check the name of a topic that a client or an operator wants made.

    Raises:
        RequestError: ILLEGAL_TOPIC: see `check_topic`; or it would be one of StrataMQ's own.
    """
    if name == TRACE_TOPIC:
        return
    check_topic(name)
    if name.startswith(_OWN_TOPIC_PREFIXES):
        prefix = next(one for one in _OWN_TOPIC_PREFIXES if name.startswith(one))
        raise RequestError(Code.ILLEGAL_TOPIC, f"names that begin with {prefix} are reserved")


def check_new_consumer_group(name: str) -> None:
    """Check the name of a consumer group that a client or an operator wants made.

    Raises:
        RequestError: ILLEGAL_CONSUMER_GROUP: see `check_consumer_group`; or it would be one of
            StrataMQ's own.
    """
    check_consumer_group(name)
    check_not_own_consumer_group(name)


def is_own_consumer_group(name: str) -> bool:
    """Whether a consumer group is StrataMQ's own, which no client consumes with."""
    return name in _OWN_GROUPS or name.startswith(OWN_PREFIX)


def is_own_topic(name: str) -> bool:
    """Whether a topic is StrataMQ's own: brokers alone write it, nobody changes or deletes it."""
    return name.startswith(OWN_PREFIX)


def check_not_own_topic(name: str) -> None:
    """Check that a topic is not one that only brokers write.

    Raises:
        RequestError: ILLEGAL_TOPIC.
    """
    if name.startswith(OWN_PREFIX):
        raise RequestError(Code.ILLEGAL_TOPIC, f"names that begin with {OWN_PREFIX} are reserved")


def check_not_own_consumer_group(name: str) -> None:
    """Check that a consumer group is not StrataMQ's own.

    Raises:
        RequestError: ILLEGAL_CONSUMER_GROUP.
    """
    if is_own_consumer_group(name):
        raise RequestError(Code.ILLEGAL_CONSUMER_GROUP, f"the name {name} is reserved")


def check_namespace(name: str) -> None:
    """Check a namespace; "" is the default one.

    Raises:
        RequestError: BAD_REQUEST: too long or illegal characters.
    """
    if name:
        _check(name, "the specified namespace", "namespace", MAX_NAMESPACE_LENGTH, Code.BAD_REQUEST)


def dead_letter_topic(consumer_group: str) -> str:
    """Return the name of a consumer group's dead-letter topic."""
    return DEAD_LETTER_PREFIX + consumer_group


def is_dead_letter_topic(topic: str) -> bool:
    """Whether a topic belongs to a consumer group."""
    return topic.startswith(DEAD_LETTER_PREFIX)


def is_table_topic(topic: str) -> bool:
    """Whether a topic stands for a key-value table: it holds no messages and never moves."""
    return topic.startswith(TABLE_PREFIX)


def _check(name: str, subject: str, kind: str, max_length: int, code: Code) -> None:
    if not name or name.isspace():
        raise RequestError(code, f"{subject} is blank")
    if len(name) > max_length:
        raise RequestError(code, f"{subject} is longer than {kind} max length {max_length}.")
    if not _ALLOWED.fullmatch(name):
        raise RequestError(
            code, f"{subject}[{name}] contains illegal characters, allowing only {_ALLOWED_TEXT}"
        )
