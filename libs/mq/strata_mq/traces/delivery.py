"""Fragments of `apache.rocketmq.v2.SystemProperties` appended to those of a message.

In protobuf a later occurrence of a field wins. So the broker appends its fields when it stores
(`store_fragment`) and when it delivers (`delivery_fragment`) and never parses the body. Every
scalar is written, zero too, to override the client's value. Encoded by hand, because one fragment
is made per message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from strata_mq.traces.traces import short_client_id

# A field's tag = field number << 3 | wire type (0 varint, 2 length-delimited).
_MESSAGE_USER_PROPERTIES = b"\x12"
_MAP_KEY = b"\x0a"
_MAP_VALUE = b"\x12"
_BODY_ENCODING_IDENTITY = b"\x28\x01"
_MESSAGE_TYPE = b"\x30"
_STORE_TIMESTAMP = b"\x4a"
_STORE_HOST = b"\x52"
_RECEIPT_HANDLE = b"\x62"
_QUEUE_ID = b"\x68"
_QUEUE_OFFSET = b"\x70"
_DELIVERY_ATTEMPT = b"\x80\x01"
_DEAD_LETTER_QUEUE = b"\xa2\x01"
_TIMESTAMP_SECONDS = b"\x08"
_TIMESTAMP_NANOS = b"\x10"
_DEAD_LETTER_TOPIC = b"\x0a"
_DEAD_LETTER_MESSAGE_ID = b"\x12"
_SENDER_CLIENT_ID = b"\xca\x3e"  # 1001
# body_digest of 36 bytes: type MD5, checksum of 32 characters.
_MD5_DIGITS = 32
_BODY_DIGEST_MD5 = b"\x22\x24\x08\x02\x12\x20"

_NANOS_PER_MS = 1_000_000
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))
_TWO_BYTES_END = 1 << 14
# Messages of one batch share their store time.
_CACHED_STORE_TIMES_MAX = 1024
# Producers send many messages each.
_CACHED_SENDERS_MAX = 4096


class StoreFragments(NamedTuple):
    """The parts that `store_fragment` and `user_property_fragment` join, for a native pass.

    Attributes:
        body_digest_md5: before the 32 digits.
        body_encoding_identity: as a whole.
        message_type: before its number.
        user_property: before the length of an entry of a Message's user properties.
    """

    body_digest_md5: bytes
    body_encoding_identity: bytes
    message_type: bytes
    user_property: bytes

    def property_name(self, name: str) -> bytes:
        """Return the name of a user property as a field of its entry."""
        return _text(_MAP_KEY, name)


STORE_FRAGMENTS = StoreFragments(
    _BODY_DIGEST_MD5, _BODY_ENCODING_IDENTITY, _MESSAGE_TYPE, _MESSAGE_USER_PROPERTIES
)


class DeliveryKeys(NamedTuple):
    """Keys of the fields that `delivery_fragment` writes, for a native pass.

    Attributes:
        store_timestamp: with its parts `seconds` and `nanos`.
        seconds: of the timestamp.
        nanos: of the timestamp.
        store_host: host that clients log.
        receipt_handle: of this delivery.
        queue: public queue id.
        queue_offset: in the queue.
        attempt: number of this delivery.
    """

    store_timestamp: bytes
    seconds: bytes
    nanos: bytes
    store_host: bytes
    receipt_handle: bytes
    queue: bytes
    queue_offset: bytes
    attempt: bytes


DELIVERY_KEYS = DeliveryKeys(
    _STORE_TIMESTAMP,
    _TIMESTAMP_SECONDS,
    _TIMESTAMP_NANOS,
    _STORE_HOST,
    _RECEIPT_HANDLE,
    _QUEUE_ID,
    _QUEUE_OFFSET,
    _DELIVERY_ATTEMPT,
)


class DeadLetterOrigin(NamedTuple):
    """Where a message of a dead-letter topic came from."""

    topic: str
    message_id: str


def delivery_fragment(
    store_time_ms: int,
    store_host: str,
    receipt_handle: str,
    queue: int,
    offset: int,
    attempt: int,
    dead_letter_origin: DeadLetterOrigin | None = None,
) -> bytes:
    """Return what one delivery adds to the system properties of a message.

    Args:
        store_time_ms: When the message was stored, group time.
        store_host: Address or name that clients log.
        receipt_handle: From `encode_handle`.
        queue: Public queue id.
        offset: Offset in the queue.
        attempt: Number of this delivery, counted from 1.
        dead_letter_origin: Set for messages of a dead-letter topic.
    """
    handle = receipt_handle.encode()
    properties = b"".join(
        (
            _before_handle(store_time_ms, store_host, len(handle)),
            handle,
            _before_offset(queue),
            _varint(offset),
            _attempt(attempt),
        )
    )
    if dead_letter_origin is not None:
        origin = _text(_DEAD_LETTER_TOPIC, dead_letter_origin.topic) + _text(
            _DEAD_LETTER_MESSAGE_ID, dead_letter_origin.message_id
        )
        properties += _DEAD_LETTER_QUEUE + _varint(len(origin)) + origin
    return properties


def store_fragment(
    md5_hex: str, *, set_identity: bool = True, message_type: int | None = None
) -> bytes:
    """Return what the broker adds to the system properties of a message before it is stored.

    Args:
        md5_hex: MD5 of the body, 32 upper-case hex digits.
        set_identity: The client named no body encoding, so it is IDENTITY.
        message_type: Written when the client's is to be overridden.
    """
    assert len(md5_hex) == _MD5_DIGITS, f"not an MD5 in hex: {md5_hex!r}"
    properties = _BODY_DIGEST_MD5 + md5_hex.encode()
    if set_identity:
        properties += _BODY_ENCODING_IDENTITY
    if message_type is not None:
        properties += _MESSAGE_TYPE + _varint(message_type)
    return properties


@lru_cache(maxsize=_CACHED_SENDERS_MAX)
@lru_cache(maxsize=1024)
def sender_fragment(client_id: str) -> bytes:
    """Return what the broker adds to system properties to say who sent a message.

    A field of `strata.broker.v1.StoredProperties`, for traces; clients pass over it.
    """
    text = short_client_id(client_id)
    return _SENDER_CLIENT_ID + _varint(len(text)) + text


def user_property_fragment(name: str, value: str) -> bytes:
    """Return a fragment of a Message with one entry of `user_properties`."""
    entry = _text(_MAP_KEY, name) + _text(_MAP_VALUE, value)
    return _MESSAGE_USER_PROPERTIES + _varint(len(entry)) + entry


@lru_cache(maxsize=_CACHED_STORE_TIMES_MAX)
def _before_handle(store_time_ms: int, store_host: str, handle_length: int) -> bytes:
    seconds, milliseconds = divmod(store_time_ms, 1000)
    timestamp = b"".join(
        (
            _TIMESTAMP_SECONDS,
            _varint(seconds),
            _TIMESTAMP_NANOS,
            _varint(milliseconds * _NANOS_PER_MS),
        )
    )
    return b"".join(
        (
            _STORE_TIMESTAMP,
            _varint(len(timestamp)),
            timestamp,
            _text(_STORE_HOST, store_host),
            _RECEIPT_HANDLE,
            _varint(handle_length),
        )
    )


@lru_cache(maxsize=1024)
def _before_offset(queue: int) -> bytes:
    return _QUEUE_ID + _varint(queue) + _QUEUE_OFFSET


@lru_cache(maxsize=128)
def _attempt(attempt: int) -> bytes:
    return _DELIVERY_ATTEMPT + _varint(attempt)


def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    if value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    if value < _TWO_BYTES_END:
        return bytes((value & 0x7F | 0x80, value >> 7))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
