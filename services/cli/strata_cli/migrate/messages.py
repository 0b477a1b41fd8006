"""One message in both forms: as RocketMQ stores it, and as it is sent to StrataMQ.

The id, tag, keys, message group, body, born time and user properties stay. The property
`STRATA_MIGRATED_FROM` says where the message was and when it was stored there; by it the copy is
found again, whatever happened between a send and its answer.
"""

from __future__ import annotations

from hashlib import blake2b
from ipaddress import ip_address
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.requests import milliseconds
from strata_broker.remoting import property_names as names
from strata_broker.remoting.incoming import queue_message_group
from strata_broker.remoting.inflation import (
    InflationError,
    TooLargeError,
    inflated,
    is_compressed,
)
from strata_cli.migrate.source_rows import SourceQueue
from strata_mq.requests import RESERVED_PROPERTIES
from strata_remoting import PulledMessage, Store, decode_properties

FROM_PROPERTY = "STRATA_MIGRATED_FROM"
"""User property of a copied message: BROKER/QUEUE/OFFSET/STORE TIME IN MS at the source."""

DIGEST_BITS = 128

# A request of the target has 16 MiB at most, with all that surrounds a body.
_MOST_BODY_BYTES = 15 * 1024 * 1024
_INNER_BATCH = 0x80
# RocketMQ shows these to consumers beside the fields that hold the same, and so does StrataMQ.
_ADDED_ON_READ = frozenset((names.SHARDING_KEY, "__transactionId__"))
# Properties by which consumers and producers agree on something; brokers' own notes are dropped.
_KEPT_RESERVED = frozenset(
    (
        *("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"),
        *("MSG_TYPE", "INSTANCE_ID", "BUYER_ID", "MAX_RECONSUME_TIMES", "PGROUP"),
    )
)


class UncopiableError(Exception):
    """A message that cannot be copied; the text says why."""


class Origin(NamedTuple):
    """Where a copied message was at the source."""

    broker: str
    queue: int
    offset: int


def copied_message(
    pulled: PulledMessage,
    queue: SourceQueue,
    *,
    namespace: str,
    fifo_queues: int,
    number: int,
    is_retry: bool = False,
) -> definition_pb2.Message:
    """Return a message as it is sent to the target.

    All tries of a message have its id at the source, and the target keeps one message for an id. So
    a retry gets an id of its place, and keeps the other as a property, as the target's own retries
    do; consumers see the same.

    Args:
        pulled: as the source has it.
        queue: where it is.
        namespace: of the topic at the target.
        fifo_queues: queues of the topic at the target if it is a FIFO topic; 0: it is not.
        number: of the queue at the target.
        is_retry: whether it is in a topic of retries.

    Raises:
        UncopiableError: its body cannot be read.
    """
    properties = decode_properties(pulled.properties)
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(resource_namespace=namespace, name=queue.topic),
        body=_body(pulled),
    )
    system = message.system_properties
    own_id = "" if is_retry else properties.get(names.UNIQUE_KEY, "")
    system.message_id = own_id or _made_id(queue, pulled.queue_offset)
    system.body_encoding = definition_pb2.IDENTITY
    if pulled.born_ms > 0:
        system.born_timestamp.FromMilliseconds(pulled.born_ms)
    system.born_host = _host(pulled.born)
    if tag := properties.get(names.TAGS, ""):
        system.tag = tag
    system.keys.extend(properties.get(names.KEYS, "").split())
    group = "" if is_retry else properties.pop(names.SHARDING_KEY, "")
    if not group and fifo_queues:
        group = queue_message_group(number, fifo_queues)
    if group:
        system.message_group = group
    user = message.user_properties
    for name, value in properties.items():
        if name not in RESERVED_PROPERTIES:
            user[name] = value
        elif name in _KEPT_RESERVED:
            user[names.stored_name(name)] = value
    if is_retry:
        if names.UNIQUE_KEY in properties:
            user[names.stored_name(names.UNIQUE_KEY)] = properties[names.UNIQUE_KEY]
        user[names.STORED_RECONSUME_TIMES] = str(pulled.reconsume_times)
    if pulled.flag:
        user[names.STORED_FLAG] = str(pulled.flag)
    user[FROM_PROPERTY] = f"{queue.broker}/{queue.queue}/{pulled.queue_offset}/{pulled.stored_ms}"
    return message


def origin_of(message: definition_pb2.Message) -> Origin | None:
    """Return where a message was copied from; None: it was not copied."""
    parts = message.user_properties.get(FROM_PROPERTY, "").rsplit("/", 3)
    if len(parts) != 4 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    return Origin(parts[0], int(parts[1]), int(parts[2]))


def digest_of(message: definition_pb2.Message) -> int:
    """Return a checksum of what a consumer sees of a message: the same before and after its send.

    Checksums of messages are added up, so that a sum does not depend on their order.
    """
    system = message.system_properties
    hashed = blake2b(digest_size=DIGEST_BITS // 8)
    texts = [
        message.topic.name,
        system.message_id,
        system.tag,
        system.message_group,
        str(milliseconds(system.born_timestamp)),
        *system.keys,
    ]
    for name, value in sorted(message.user_properties.items()):
        if name not in _ADDED_ON_READ:
            texts += (name, value)
    for text in texts:
        data = text.encode()
        hashed.update(len(data).to_bytes(4, "big") + data)
    hashed.update(message.body)
    return int.from_bytes(hashed.digest(), "big")


def added(left: int, right: int) -> int:
    """Return a sum of checksums."""
    return (left + right) % (1 << DIGEST_BITS)


def _body(pulled: PulledMessage) -> bytes:
    flag = pulled.system_flag
    if flag & _INNER_BATCH:
        raise UncopiableError("it is a batch that is stored as one message")
    if not is_compressed(flag):
        if len(pulled.body) > _MOST_BODY_BYTES:
            raise UncopiableError(f"its body of {len(pulled.body)} bytes is too large")
        return pulled.body
    try:
        return inflated(pulled.body, flag, _MOST_BODY_BYTES)
    except InflationError as bad:
        raise UncopiableError(str(bad)) from None
    except TooLargeError:
        raise UncopiableError(
            f"its body is larger than {_MOST_BODY_BYTES} bytes when it is inflated"
        ) from None


def _made_id(queue: SourceQueue, offset: int) -> str:
    """Return the same id in every run for a message that has none."""
    place = f"{queue}/{offset}".encode()
    return f"MIGRATED-{blake2b(place, digest_size=16).hexdigest().upper()}"


def _host(born: Store) -> str:
    address = str(ip_address(born.host))
    return f"[{address}]:{born.port}" if born.is_ipv6 else f"{address}:{born.port}"
