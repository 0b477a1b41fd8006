"""Messages as pull consumers get them: RocketMQ's CommitLog format, back to back.

Layout of one message, big-endian: total length (4), magic (4), CRC32 of the body (4), queue id (4),
flag (4), queue offset (8), physical offset (8), system flag (4), born time (8), born host (4 or 16)
and port (4), store time (8), store host and port, reconsume times (4), prepared transaction offset
(8), body length (4) and body, topic length (1; 2 with the second magic) and topic, properties
length (2) and properties.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

from strata_remoting.command import RemotingError
from strata_remoting.offset_ids import Store

_MAGIC_1 = 0xDAA320A7
_MAGIC_2 = 0xDAA320AB
_MOST_SHORT_TOPIC_BYTES = 127
_MOST_PROPERTIES_BYTES = (1 << 15) - 1
_CRC_MASK = 0x7FFFFFFF

_HEAD = struct.Struct(">IIIiiqqiq")
_PORT = struct.Struct(">i")
_TIME = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_TOPIC_LENGTHS = {_MAGIC_1: struct.Struct(">B"), _MAGIC_2: struct.Struct(">H")}
_PROPERTIES_LENGTH = struct.Struct(">H")

_BORN_IPV6 = 1 << 4
_STORE_IPV6 = 1 << 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledMessage:
    """A message of a queue.

    Attributes:
        queue_id: number of the queue under its broker name.
        queue_offset: in the queue.
        physical_offset: see `offset_ids`.
        born_ms: when it was made, by its producer's clock.
        born: where it came from.
        stored_ms: when it was stored.
        store: who stored it.
        topic: its topic.
        body: as it was sent, never compressed.
        properties: as one text.
        flag: number that belongs to the application.
        reconsume_times: how often it was sent back before.
        system_flag: bits of RocketMQ; those of IPv6 addresses are set by `encode_message`.
    """

    queue_id: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    born: Store
    stored_ms: int
    store: Store
    topic: str
    body: bytes
    properties: str
    flag: int = 0
    reconsume_times: int = 0
    system_flag: int = 0


def encode_message(message: PulledMessage) -> bytes:
    """Return the bytes of one message.

    Raises:
        RemotingError: its topic or its properties are too long for the format.
    """
    topic, properties = message.topic.encode(), message.properties.encode()
    if len(properties) > _MOST_PROPERTIES_BYTES:
        raise RemotingError(f"the properties of a message have {len(properties)} bytes")
    magic = _MAGIC_1 if len(topic) <= _MOST_SHORT_TOPIC_BYTES else _MAGIC_2
    system_flag = message.system_flag
    system_flag |= _BORN_IPV6 if message.born.is_ipv6 else 0
    system_flag |= _STORE_IPV6 if message.store.is_ipv6 else 0
    middle = b"".join(
        (
            message.born.host,
            _PORT.pack(message.born.port),
            _TIME.pack(message.stored_ms),
            message.store.host,
            _PORT.pack(message.store.port),
            _TAIL.pack(message.reconsume_times, 0, len(message.body)),
            message.body,
            _TOPIC_LENGTHS[magic].pack(len(topic)),
            topic,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    )
    head = _HEAD.pack(
        _HEAD.size + len(middle),
        magic,
        crc32(message.body) & _CRC_MASK,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        system_flag,
        message.born_ms,
    )
    return head + middle


def decode_messages(data: bytes) -> list[PulledMessage]:
    """Return the messages of an answer to a pull.

    Raises:
        RemotingError: the bytes are no messages, or a body does not match its checksum.
    """
    messages = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise RemotingError(f"{len(data) - at} bytes are no message")
        (size,) = struct.unpack_from(">I", data, at)
        if not _HEAD.size <= size <= len(data) - at:
            raise RemotingError(f"a message has {size} bytes; {len(data) - at} are left")
        try:
            messages.append(_decode_one(data[at : at + size]))
        except (struct.error, UnicodeDecodeError) as error:
            raise RemotingError(f"a message cannot be read: {error}") from None
        at += size
    return messages


def _decode_one(data: bytes) -> PulledMessage:
    _, magic, checksum, queue_id, flag, queue_offset, physical, system_flag, born_ms = (
        _HEAD.unpack_from(data)
    )
    if magic not in _TOPIC_LENGTHS:
        raise RemotingError(f"a message begins with {magic:08X}")
    born, at = _store_at(data, _HEAD.size, is_ipv6=bool(system_flag & _BORN_IPV6))
    (stored_ms,) = _TIME.unpack_from(data, at)
    store, at = _store_at(data, at + _TIME.size, is_ipv6=bool(system_flag & _STORE_IPV6))
    reconsume_times, _, body_bytes = _TAIL.unpack_from(data, at)
    body, at = _piece(data, at + _TAIL.size, body_bytes)
    if crc32(body) & _CRC_MASK != checksum:
        raise RemotingError("the body of a message does not match its checksum")
    topic_length = _TOPIC_LENGTHS[magic]
    (topic_bytes,) = topic_length.unpack_from(data, at)
    topic, at = _piece(data, at + topic_length.size, topic_bytes)
    (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(data, at)
    properties, at = _piece(data, at + _PROPERTIES_LENGTH.size, properties_bytes)
    if at != len(data):
        raise RemotingError(f"{len(data) - at} bytes follow a message's properties")
    return PulledMessage(
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical,
        born_ms=born_ms,
        born=born,
        stored_ms=stored_ms,
        store=store,
        topic=topic.decode(),
        body=body,
        properties=properties.decode(),
        flag=flag,
        reconsume_times=reconsume_times,
        system_flag=system_flag & ~(_BORN_IPV6 | _STORE_IPV6),
    )


def _store_at(data: bytes, at: int, *, is_ipv6: bool) -> tuple[Store, int]:
    host, at = _piece(data, at, 16 if is_ipv6 else 4)
    (port,) = _PORT.unpack_from(data, at)
    return Store(host, port), at + _PORT.size


def _piece(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if not 0 <= size <= len(data) - at:
        raise RemotingError(f"a piece of a message has {size} bytes; {len(data) - at} are left")
    return data[at : at + size], at + size
