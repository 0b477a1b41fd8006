"""Protobuf wire format by hand, for the few places where an object per message is too expensive.

Role: builds stored and delivered messages and the answers of hot calls by joining bytes.
Everything else uses the generated classes.

Invariant: the bytes parse to the same values as those of the generated classes (a test compares
both).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_mq.requests import Code

_LENGTH_DELIMITED = 2
SYSTEM_PROPERTIES_KEY = b"\x1a"
"""`Message.system_properties`: field 3, length-delimited."""
_VARINT_BYTES = 10
FIXED_BYTES = {1: 8, 5: 4}
"""Wire type -> bytes, of fields of a fixed length."""

_VARINT_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encode an integer as int32, int64 or an enum field does (negative: two's complement)."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    value &= _VARINT_MASK
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def length_delimited(field: int, value: bytes) -> bytes:
    """Encode a bytes, string or message field, key included."""
    return b"".join((varint(field << 3 | _LENGTH_DELIMITED), varint(len(value)), value))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, end position); a cut or too long varint ends behind the end of the data."""
    value = shift = 0
    for position in range(at, min(at + _VARINT_BYTES, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    return 0, len(data)


def stored_message(properties: bytes, added: bytes, rest: bytes) -> bytes:
    """Build a message whose system properties are one field, the first.

    Protobuf lets a message field appear twice and merges both, but the JavaScript runtime keeps
    only the last one. So added properties go inside the one field. The field comes first, so that
    `received_message` finds it without reading the other fields.

    Args:
        properties: serialised SystemProperties.
        added: more SystemProperties, which override those before.
        rest: the serialised Message without system properties.
    """
    return b"".join(
        (SYSTEM_PROPERTIES_KEY, varint(len(properties) + len(added)), properties, added, rest)
    )


def system_properties_end(stored: bytes) -> int:
    """Return where the system properties of a stored message end."""
    at = _payload_at(stored)
    length = 0
    for position, byte in enumerate(stored[1:at]):
        length |= (byte & 0x7F) << 7 * position
    return at + length


def _payload_at(data: bytes) -> int:
    """Return where the payload of the first field begins; its key is one byte."""
    at = 1
    while data[at] > 0x7F:
        at += 1
    return at + 1


def status(code: int, text: str) -> bytes:
    """Serialise a `Status`."""
    return definition_pb2.Status(
        code=definition_pb2.Code.ValueType(code), message=text
    ).SerializeToString()


OK_STATUS = status(20000, "OK")
_OK_FIRST_FIELD = length_delimited(1, OK_STATUS)
_OK_THIRD_FIELD = length_delimited(3, OK_STATUS)
OK_ANSWER = _OK_FIRST_FIELD
"""Status OK of the answer to a send or an ack."""
OK_ENTRY = _OK_THIRD_FIELD
"""Status OK of an `AckMessageResultEntry`."""
RECEIVED_MESSAGE_KEY = b"\x12"
"""`ReceiveMessageResponse.message`: field 2, length-delimited."""


def pending_result_entry(message_id: bytes, transaction_id: bytes, recall_handle: bytes) -> bytes:
    """Serialise an OK `SendResultEntry` of a message that has no offset yet; all is UTF-8."""
    fields = [_OK_FIRST_FIELD, length_delimited(2, message_id), length_delimited(3, transaction_id)]
    if recall_handle:
        fields.append(length_delimited(5, recall_handle))
    return length_delimited(2, b"".join(fields))


def send_result_entry(message_id: bytes, offset: int) -> bytes:
    """Serialise an OK `SendResultEntry` as a field of SendMessageResponse.

    Args:
        message_id: UTF-8; it is the transaction id as well, as the real product has it.
        offset: position of the message in its queue.
    """
    # proto3 leaves a zero out.
    last = b"\x20" + varint(offset) if offset else b""
    head, between = _result_entry_parts(len(message_id), len(last))
    return b"".join((head, message_id, between, message_id, last))


@lru_cache(maxsize=1024)
def _result_entry_parts(id_length: int, last_length: int) -> tuple[bytes, bytes]:
    """Return what is before the first and the second id of a `SendResultEntry`, by lengths."""
    length = varint(id_length)
    first, second = _OK_FIRST_FIELD + b"\x12" + length, b"\x1a" + length
    size = len(first) + len(second) + 2 * id_length + last_length
    return b"\x12" + varint(size) + first, second


def acked(entries: Iterable[tuple[str, str]]) -> bytes:
    """Serialise an AckMessageResponse whose entries are all OK.

    Args:
        entries: message id and receipt handle of each; none is empty.
    """
    parts = [_OK_FIRST_FIELD]
    for message_id, handle in entries:
        first, second = message_id.encode(), handle.encode()
        head, between = _acked_entry_parts(len(first), len(second))
        parts += (head, first, between, second, _OK_THIRD_FIELD)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _acked_entry_parts(id_length: int, handle_length: int) -> tuple[bytes, bytes]:
    """Return what is before the id and the handle of an `AckMessageResultEntry`, by lengths."""
    first, second = b"\x0a" + varint(id_length), b"\x12" + varint(handle_length)
    size = len(first) + id_length + len(second) + handle_length + len(_OK_THIRD_FIELD)
    return b"\x12" + varint(size) + first, second


def plain_ack(request: bytes) -> tuple[bytes, list[str], bytes] | None:
    """Read an AckMessageRequest as clients write it: group, topic, entries with id and handle.

    Returns:
        Group and topic as a request of their own, the handles, and the answer for the case that
        all are OK. None: the request has another form, or a field of 128 bytes or more.
    """
    entries, handles = [], []
    try:
        topic_at = 2 + request[1]
        at = topic_at + 2 + request[topic_at + 1]
        if request[0] != 0x0A or request[topic_at] != 0x12 or not request[:at].isascii():
            return None
        head = request[:at]
        while at < len(request):
            entry_at, end = at + 2, at + 2 + request[at + 1]
            handle_at = entry_at + 2 + request[entry_at + 1]
            entry, handle = request[entry_at:end], request[handle_at + 2 : end]
            if (
                request[at] != 0x1A
                or request[entry_at] != 0x0A
                or request[handle_at] != 0x12
                or handle_at == entry_at + 2
                or not handle
                or request[handle_at + 1] != len(handle)
                or not request[at:entry_at].isascii()
                or not entry.isascii()
            ):
                return None
            entries.append(entry)
            handles.append(handle.decode())
            at = end
    except IndexError:
        return None
    if not entries or at != len(request):
        return None
    return head, handles, _plainly_acked(entries)


def _plainly_acked(entries: Sequence[bytes]) -> bytes:
    """Serialise an answer whose entries are all OK; each begins as that of the request."""
    if len(entries) == 1:
        return b"".join((_plainly_acked_head(len(entries[0])), entries[0], _OK_THIRD_FIELD))
    parts = [_OK_FIRST_FIELD]
    for entry in entries:
        parts += (b"\x12", varint(len(entry) + len(_OK_THIRD_FIELD)), entry, _OK_THIRD_FIELD)
    return b"".join(parts)


@lru_cache(maxsize=128)
def _plainly_acked_head(entry_length: int) -> bytes:
    """Return what is before the only entry of an AckMessageResponse."""
    return _OK_FIRST_FIELD + b"\x12" + varint(entry_length + len(_OK_THIRD_FIELD))


def send_response(entries: list[bytes]) -> bytes:
    """Serialise a SendMessageResponse whose entries are all OK."""
    return b"".join((_OK_FIRST_FIELD, *entries))


def sent(message_ids: Sequence[str], offsets: Sequence[int]) -> bytes:
    """Serialise a SendMessageResponse whose entries are all OK; see `send_result_entry`."""
    if len(message_ids) == 1:
        return _sent_alone(message_ids[0], offsets[0])
    return send_response(list(map(send_result_entry, map(str.encode, message_ids), offsets)))


def _sent_alone(message_id: str, offset: int) -> bytes:
    last = b"\x20" + varint(offset) if offset else b""
    own_id = message_id.encode()
    head, between = _sent_alone_parts(len(own_id), len(last))
    return b"".join((head, own_id, between, own_id, last))


@lru_cache(maxsize=1024)
def _sent_alone_parts(id_length: int, last_length: int) -> tuple[bytes, bytes]:
    head, between = _result_entry_parts(id_length, last_length)
    return _OK_FIRST_FIELD + head, between


def received_message(stored: bytes, added: bytes, rest: bytes = b"") -> bytes:
    """Serialise a ReceiveMessageResponse with one message.

    Args:
        stored: as `stored_message` made it.
        added: SystemProperties added to the stored ones: of a field in both, these hold.
        rest: more fields of the message.
    """
    # Nearly always the length has two bytes.
    length, properties_at = stored[1], 2
    if length > 0x7F:
        length, properties_at = length & 0x7F | stored[2] << 7, 3
        if stored[2] > 0x7F:
            length, properties_at = read_varint(stored, 1)
    properties_end = properties_at + length
    properties_length = varint(length + len(added))
    size = 1 + len(properties_length) + len(stored) - properties_at + len(added) + len(rest)
    return b"".join(
        (
            RECEIVED_MESSAGE_KEY,
            varint(size),
            SYSTEM_PROPERTIES_KEY,
            properties_length,
            stored[properties_at:properties_end],
            added,
            stored[properties_end:],
            rest,
        )
    )


def receive_status(code: int, text: str) -> bytes:
    """Serialise a ReceiveMessageResponse with a status."""
    return length_delimited(1, status(code, text))


RECEIVE_OK = length_delimited(1, OK_STATUS)


def next_offset(offset: int) -> bytes:
    """Serialise the last PullMessageResponse of a stream.

    Its status and message fields have the numbers of a ReceiveMessageResponse.
    """
    return b"\x18" + varint(offset)


_NOTHING = receive_status(Code.MESSAGE_NOT_FOUND, "no new message")


def nothing(wall_ms: int, why: str = "") -> list[bytes]:
    """Serialise the responses of a receive without messages; `why`: why it could not look."""
    status = receive_status(Code.MESSAGE_NOT_FOUND, f"no new message: {why}") if why else _NOTHING
    return [status, delivery_timestamp(wall_ms)]


def delivery_timestamp(wall_ms: int) -> bytes:
    """Serialise the last ReceiveMessageResponse of a stream."""
    response = service_pb2.ReceiveMessageResponse()
    response.delivery_timestamp.FromMilliseconds(wall_ms)
    return response.SerializeToString()
