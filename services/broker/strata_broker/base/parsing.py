"""Parses requests after counting their elements.

An empty element of a repeated field takes two bytes of a request, but some hundred bytes of memory
and some time: 16 MiB of them stop a broker. So elements are counted on the wire, before any object
is created (rule 34).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from strata_broker.base.wire import FIXED_BYTES, read_varint

Request = TypeVar("Request", bound=Message)

MAX_ELEMENTS = 4_096
"""Most elements of one repeated field, in one message."""

MAX_PIECES = 16
"""Most copies of a singular message field; a parser merges them."""

MAX_FIELDS = 65_536
"""Most fields in all checked messages of a request."""

_COUNTED_FROM_BYTES = 16_384
"""A smaller request cannot hold too many elements."""

_LOOKED_INTO_FROM_BYTES = 4_096
"""A smaller message inside another one counts as one field."""

_LENGTH_DELIMITED = 2
_VARINT = 0
# Begin and end of a group; its content counts as if it were outside.
_GROUP = (3, 4)


class TooManyElements(DecodeError):
    """A request has more elements than any client sends."""


class _Shape(NamedTuple):
    """The fields of a message type, by number.

    Attributes:
        name: of the type.
        limits: how often a field may occur.
        packed: repeated fields of numbers without a key each.
        messages: fields that are messages.
    """

    name: str
    limits: dict[int, int]
    packed: frozenset[int]
    messages: dict[int, Descriptor]


def parse(
    request_type: type[Request], data: bytes, *, counted_from_bytes: int = _COUNTED_FROM_BYTES
) -> Request:
    """Return a request.

    Args:
        request_type: its class.
        data: serialised.
        counted_from_bytes: elements of a smaller request are not counted.

    Raises:
        DecodeError: the bytes are no such request, or it has too many elements; the text says
            which.
    """
    if len(data) >= counted_from_bytes:
        _check(cast("Descriptor", request_type.DESCRIPTOR), data, 0, len(data), MAX_FIELDS)
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise DecodeError(f"not a {request_type.__name__}") from error


def _check(descriptor: Descriptor, data: bytes, at: int, end: int, left: int) -> int:
    """Count the fields of a message; return how many more are allowed.

    Malformed bytes are left to the parser, which reports them.

    Raises:
        TooManyElements: the message has more.
    """
    shape = _shape_of(descriptor)
    counts: dict[int, int] = {}
    while at < end:
        left -= 1
        if left < 0:
            raise TooManyElements(f"a request has at most {MAX_FIELDS} fields")
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        length = 0
        if kind == _LENGTH_DELIMITED:
            length, at = read_varint(data, at)
        elif kind == _VARINT:
            _, at = read_varint(data, at)
        elif kind in FIXED_BYTES:
            at += FIXED_BYTES[kind]
        elif kind not in _GROUP:
            return left
        if number in shape.limits:
            found = counts.get(number, 0) + (length if number in shape.packed else 1)
            if found > shape.limits[number]:
                name = f"{shape.name}.{descriptor.fields_by_number[number].name}"
                raise TooManyElements(f"{name} has at most {shape.limits[number]} elements")
            counts[number] = found
        if length >= _LOOKED_INTO_FROM_BYTES and number in shape.messages:
            left = _check(shape.messages[number], data, at, min(at + length, end), left)
        at += length
    return left


@cache
def _shape_of(descriptor: Descriptor) -> _Shape:
    limits, packed, messages = {}, set(), {}
    for field in descriptor.fields:
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if field.is_repeated:
            limits[field.number] = MAX_ELEMENTS
            if not is_message and field.type not in _WITH_LENGTH:
                packed.add(field.number)
        elif is_message:
            limits[field.number] = MAX_PIECES
        if is_message and field.message_type is not None:
            messages[field.number] = field.message_type
    return _Shape(descriptor.name, limits, frozenset(packed), messages)


_WITH_LENGTH = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
