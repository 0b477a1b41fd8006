"""Protobuf messages as Avro records: the schema comes from the message's descriptor.

| protobuf | Avro |
|---|---|
| message | record of the same full name; fields by their names, in the order of their numbers |
| message field, `optional`, member of a oneof | union of null and the type; null: not set |
| repeated | array |
| map with string keys | map; with other keys: array of its entry records |
| int32, sint32, sfixed32 | int |
| uint32, fixed32, int64, sint64, sfixed64 | long |
| uint64, fixed64 | long with the same 64 bits, as in Java: above 2^63 it shows as negative |
| enum | int, its number: protobuf's enums are open, Avro's are not |
| bool, string, bytes, float, double | the same |

Both sides derive the schema from the same protos, so no schema travels. An older peer does not
understand fields that a newer peer adds: use protobuf or JSON between versions.

Invariant: bytes that are no record raise `AvroError` after at most as many values as there are
bytes. An array of a message without fields is therefore refused: its items take no bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import fastavro
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)
Convert = Callable[[Any], Any]


class AvroError(Exception):
    """These bytes are not a record of such a message."""


def encode_record(message: Message) -> bytes:
    """Return the Avro binary encoding of a message."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed_schema(message.DESCRIPTOR), _as_record(message))
    return out.getvalue()


def decode_record(data: bytes, message_type: type[MessageT]) -> MessageT:
    """Return the message.

    Raises:
        AvroError: the bytes are something else.
    """
    source = io.BytesIO(data)
    descriptor = cast("Descriptor", message_type.DESCRIPTOR)
    try:
        record = fastavro.schemaless_reader(source, _parsed_schema(descriptor), None)
        message = _as_message(cast("dict[str, Any]", record), descriptor)
    except (
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        MemoryError,
        RecursionError,
        struct.error,
    ) as error:
        raise AvroError(f"{type(error).__name__}: {error}") from error
    if source.tell() != len(data):
        raise AvroError(f"{len(data) - source.tell()} bytes after the record")
    return cast("MessageT", message)


def schema(message_type: Descriptor) -> dict[str, Any]:
    """Return the Avro schema of a message as JSON would hold it.

    Raises:
        TypeError: a repeated message has no fields.
    """
    return cast("dict[str, Any]", _record_schema(message_type, set()))


# -- schema --------------------------------------------------------------------------------------


_SCALARS: Mapping[int, str] = {
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
    FieldDescriptor.TYPE_ENUM: "int",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_SINT64: "long",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_UINT64: "long",
    FieldDescriptor.TYPE_FIXED64: "long",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
}
_UNSIGNED_64 = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)


@cache
def _parsed_schema(message_type: Descriptor) -> Any:
    return fastavro.parse_schema(schema(message_type))


def _record_schema(message_type: Descriptor, known: set[str]) -> Any:
    """A record is written out where it is met first, and named from then on."""
    if message_type.full_name in known:
        return message_type.full_name
    known.add(message_type.full_name)
    return {
        "type": "record",
        "name": message_type.full_name,
        "fields": [
            {"name": field.name, "type": _field_schema(field, known)}
            for field in _fields(message_type)
        ],
    }


def _field_schema(field: FieldDescriptor, known: set[str]) -> Any:
    if _is_map(field):
        return {"type": "map", "values": _single_schema(_entry_field(field, "value"), known)}
    if field.is_repeated:
        if field.message_type is not None and not field.message_type.fields:
            raise TypeError(f"{field.full_name}: no array of a message without fields")
        return {"type": "array", "items": _single_schema(field, known)}
    single = _single_schema(field, known)
    return ["null", single] if field.has_presence else single


def _single_schema(field: FieldDescriptor, known: set[str]) -> Any:
    if field.message_type is not None:
        return _record_schema(field.message_type, known)
    return _SCALARS[field.type]


def _fields(message_type: Descriptor) -> list[FieldDescriptor]:
    return sorted(message_type.fields, key=lambda field: field.number)


def _is_map(field: FieldDescriptor) -> bool:
    """Tell whether this is a map that Avro has too."""
    entry = field.message_type
    return (
        field.is_repeated
        and entry is not None
        and entry.GetOptions().map_entry
        and entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    )


def _entry_field(field: FieldDescriptor, name: str) -> FieldDescriptor:
    """Return the `key` or `value` field of a map's entries."""
    assert field.message_type is not None, "a map is a repeated message"
    return field.message_type.fields_by_name[name]


# -- values --------------------------------------------------------------------------------------


class _Field(NamedTuple):
    """How the values of one field change sides."""

    name: str
    optional: bool
    to_avro: Convert
    from_avro: Convert


@cache
def _converters(message_type: Descriptor) -> tuple[_Field, ...]:
    return tuple(_converter(field) for field in _fields(message_type))


@cache
def _message_class(message_type: Descriptor) -> type[Message]:
    return message_factory.GetMessageClass(message_type)


def _converter(field: FieldDescriptor) -> _Field:
    if _is_map(field):
        to_avro, from_avro = _single(_entry_field(field, "value"))
        return _Field(
            field.name,
            False,
            lambda values: {key: to_avro(value) for key, value in values.items()},
            lambda values: {key: from_avro(value) for key, value in values.items()},
        )
    to_avro, from_avro = _single(field)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return _entries_converter(field)
        return _Field(
            field.name,
            False,
            lambda values: [to_avro(value) for value in values],
            lambda values: [from_avro(value) for value in values],
        )
    return _Field(field.name, field.has_presence, to_avro, from_avro)


def _entries_converter(field: FieldDescriptor) -> _Field:
    """A map whose keys Avro's maps cannot have."""
    key_to, key_from = _single(_entry_field(field, "key"))
    value_to, value_from = _single(_entry_field(field, "value"))
    return _Field(
        field.name,
        False,
        lambda values: [
            {"key": key_to(key), "value": value_to(value)} for key, value in values.items()
        ],
        lambda entries: {key_from(e["key"]): value_from(e["value"]) for e in entries},
    )


def _single(field: FieldDescriptor) -> tuple[Convert, Convert]:
    message_type = field.message_type
    if message_type is not None:
        return _as_record, lambda record: _as_message(record, message_type)
    if field.type in _UNSIGNED_64:
        return _to_signed, _to_unsigned
    return _same, _same


def _as_record(message: Message) -> dict[str, Any]:
    return {
        name: None if optional and not message.HasField(name) else to_avro(getattr(message, name))
        for name, optional, to_avro, _ in _converters(message.DESCRIPTOR)
    }


def _as_message(record: Mapping[str, Any], message_type: Descriptor) -> Message:
    values = {
        name: from_avro(record[name])
        for name, _, _, from_avro in _converters(message_type)
        if record[name] is not None
    }
    return _message_class(message_type)(**values)


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _to_unsigned(value: int) -> int:
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _same(value: Any) -> Any:
    return value
