"""Properties of a stored message, read from its bytes without a `Message` or a copy of the body.

A stored message is a serialised `apache.rocketmq.v2.Message` (docs/data-layout.md section 3). The
reader skips from field to field by their lengths; only requested properties become text. A repeated
field replaces the earlier one, as everywhere in protobuf.

A filter knows system properties by RocketMQ's names: `TAGS`, `KEYS` and others. Users cannot set
these reserved properties (`validation.RESERVED_PROPERTIES`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_ONE_BYTE_END = 0x80
_VARINT_BITS_MAX = 64

# Fields of a Message, and of an entry of its user properties.
_USER_PROPERTIES = 2
_SYSTEM_PROPERTIES = 3
_ENTRY_KEY = 1
_ENTRY_VALUE = 2
_USER_PROPERTIES_TAG = _USER_PROPERTIES << 3 | _LENGTH
_ENTRY_KEY_TAG = _ENTRY_KEY << 3 | _LENGTH
_ENTRY_VALUE_TAG = _ENTRY_VALUE << 3 | _LENGTH
_SYSTEM_PROPERTIES_TAG = _SYSTEM_PROPERTIES << 3 | _LENGTH

# Fields of SystemProperties by the names that RocketMQ's filters know them by.
_TAG = 1
_KEYS = 2
_MESSAGE_TYPE = 6
_BORN_TIMESTAMP = 7
_SYSTEM_NAMES = {
    "TAGS": _TAG,
    "KEYS": _KEYS,
    "UNIQ_KEY": 3,
    "BORN_TIMESTAMP": _BORN_TIMESTAMP,
    "__BORNHOST": 8,
}
_TIMESTAMP_SECONDS = 1
_TIMESTAMP_NANOS = 2
_NANOS_PER_MS = 1_000_000

Field = tuple[int, int, int, int]
"""(field number, wire type, first byte of the value, first byte behind it)."""


class PropertyReader:
    """Reads the properties of some names from messages."""

    __slots__ = ("_system", "_user")

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare for these names; a name that no message has is never found."""
        names = frozenset(names)
        self._user = {name.encode(): name for name in names if name not in _SYSTEM_NAMES}
        self._system = {_SYSTEM_NAMES[name]: name for name in names if name in _SYSTEM_NAMES}

    def read(self, message: bytes) -> dict[str, str]:
        """Return the properties that a stored message has of those names.

        Raises:
            ValueError: the bytes are no Message.
        """
        found: dict[str, str] = {}
        at, end = 0, len(message)
        try:
            while at < end:
                if message[at] == _USER_PROPERTIES_TAG and 2 <= message[at + 1] < _ONE_BYTE_END:
                    start = at + 2
                    at = start + message[at + 1]
                    self._read_short_entry(message, start, at, found)
                    continue
                number, wire_type, start, at = _field(message, at, end)
                if wire_type != _LENGTH:
                    continue
                if number == _USER_PROPERTIES:
                    self._read_entry(message, start, at, found)
                elif number == _SYSTEM_PROPERTIES and self._system:
                    self._read_system(message, start, at, found)
        except IndexError as error:
            raise ValueError("the message ends inside a field") from error
        if at > end:
            raise ValueError("the message ends inside a property")
        return found

    def _read_short_entry(
        self, message: bytes, start: int, end: int, found: dict[str, str]
    ) -> None:
        """Read an entry whose lengths are of one byte, as most are.

        One that nobody asks for costs one look.
        """
        if message[start] != _ENTRY_KEY_TAG:
            self._read_entry(message, start, end, found)
            return
        value_at = start + 2 + message[start + 1]
        name = self._user.get(message[start + 2 : value_at])
        if name is None:
            return
        text_at = value_at + 2
        is_usual = text_at <= end and message[value_at] == _ENTRY_VALUE_TAG
        if is_usual and message[value_at + 1] == end - text_at:
            found[name] = message[text_at:end].decode()
        else:
            self._read_entry(message, start, end, found)

    def _read_entry(self, message: bytes, start: int, end: int, found: dict[str, str]) -> None:
        key = value = b""
        for number, _, value_start, value_end in _fields(message, start, end):
            if number == _ENTRY_KEY:
                key = message[value_start:value_end]
            elif number == _ENTRY_VALUE:
                value = message[value_start:value_end]
        name = self._user.get(key)
        if name is not None:
            found[name] = value.decode()

    def _read_system(self, message: bytes, start: int, end: int, found: dict[str, str]) -> None:
        for number, _, value_start, value_end in _fields(message, start, end):
            name = self._system.get(number)
            if name is None:
                continue
            if number == _BORN_TIMESTAMP:
                found[name] = str(_milliseconds(message, value_start, value_end))
                continue
            text = message[value_start:value_end].decode()
            if number == _KEYS and name in found:
                text = f"{found[name]} {text}"
            found[name] = text


def tag_of(message: bytes) -> str:
    """Return the tag of a stored message; "": it has none.

    Raises:
        ValueError: the bytes are no stored message.
    """
    try:
        for number, _, value_start, value_end in _system_fields(message):
            if number == _TAG:
                return message[value_start:value_end].decode()
    except IndexError as error:
        raise ValueError("the message ends inside a field") from error
    return ""


def type_and_born_ms(message: bytes) -> tuple[int, int]:
    """Return (message type, when it was born) of a stored message; 0 for what it does not say.

    Raises:
        ValueError: the bytes are no stored message.
    """
    message_type = born_ms = 0
    try:
        for number, _, value_start, value_end in _system_fields(message):
            if number == _MESSAGE_TYPE:
                message_type, _ = _varint(message, value_start)
            elif number == _BORN_TIMESTAMP:
                born_ms = _milliseconds(message, value_start, value_end)
    except IndexError as error:
        raise ValueError("the message ends inside a field") from error
    return message_type, born_ms


def _system_fields(message: bytes) -> Iterator[Field]:
    number, _, start, end = _field(message, 0, len(message))
    if number != _SYSTEM_PROPERTIES:
        raise ValueError("a stored message begins with its system properties")
    return _fields(message, start, end)


def _fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Go over the fields of a message that lies between two places; see `_field`."""
    while at < end:
        field = _field(data, at, end)
        yield field
        at = field[3]


def _field(data: bytes, at: int, end: int) -> Field:
    """Return the field that begins at a place.

    Raises:
        IndexError: a number ends behind the bytes.
        ValueError: the bytes are no message.
    """
    tag = data[at]
    at += 1
    if tag >= _ONE_BYTE_END:
        tag, at = _varint(data, at - 1)
    wire_type = tag & 7
    if wire_type == _LENGTH:
        length = data[at]
        at += 1
        if length >= _ONE_BYTE_END:
            length, at = _varint(data, at - 1)
        behind = at + length
    elif wire_type == _VARINT:
        _, behind = _varint(data, at)
    elif wire_type in _FIXED_BYTES:
        behind = at + _FIXED_BYTES[wire_type]
    else:
        raise ValueError(f"there is no wire type {wire_type}")
    if behind > end:
        raise ValueError("a field is longer than what holds it")
    return tag >> 3, wire_type, at, behind


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _ONE_BYTE_END:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")


def _milliseconds(data: bytes, start: int, end: int) -> int:
    seconds = nanos = 0
    for number, _, value_start, _ in _fields(data, start, end):
        if number == _TIMESTAMP_SECONDS:
            seconds, _ = _varint(data, value_start)
        elif number == _TIMESTAMP_NANOS:
            nanos, _ = _varint(data, value_start)
    return seconds * 1_000 + nanos // _NANOS_PER_MS
