"""Names of message properties that have a meaning of their own in RocketMQ.

A remoting client writes all properties of a message into one list. Some are fields of a gRPC
message; RocketMQ keeps the others for itself, and no gRPC client may set them. They are stored as
user properties whose names begin with `PREFIX`, so that remoting consumers get them back.
"""

from __future__ import annotations

from strata_mq.requests import RESERVED_PROPERTIES

PREFIX = "__remoting."

UNIQUE_KEY = "UNIQ_KEY"
TAGS = "TAGS"
KEYS = "KEYS"
WAIT = "WAIT"
DELAY = "DELAY"
TIMER_DELAY_S = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
SHARDING_KEY = "__SHARDINGKEY"
TRANSACTION = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
FIRST_CHECK_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
REAL_TOPIC = "REAL_TOPIC"
POP_CHECK = "POP_CK"
REPLY_TO = "REPLY_TO_CLIENT"
CLUSTER = "CLUSTER"
TIME_TO_LIVE_MS = "TTL"
DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

STORED_FLAG = f"{PREFIX}flag"
"""User property with the number that belongs to the application, if it is not 0."""

STORED_LETTER = f"{PREFIX}letter"
"""User property of a dead letter: of which message it is."""

STORED_RECONSUME_TIMES = f"{PREFIX}reconsume_times"
"""User property that says how often a message was sent back before, if it was."""

NOT_SHOWN = frozenset((STORED_FLAG, STORED_LETTER, STORED_RECONSUME_TIMES))
"""User properties that remoting consumers do not see as such."""

NOT_STORED = frozenset(
    (UNIQUE_KEY, TAGS, KEYS, WAIT, DELAY, TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVER_MS)
)
"""Properties that become fields of a gRPC message, or say how a send is made."""


def stored_name(name: str) -> str:
    """Return the name of the user property that holds a property of a remoting client."""
    return PREFIX + name if name in RESERVED_PROPERTIES else name


def shown_name(name: str) -> str:
    """Return the name under which remoting clients see a user property."""
    bare = name.removeprefix(PREFIX)
    return bare if bare in RESERVED_PROPERTIES else name
