"""Requests that no client would send: valid ones with changed fields, made-up ones, spoiled bytes.

All randomness comes from one seeded generator, so a run can be repeated. Names and handles are
taken from a pool that also learns what the server answers, so that requests get past the first
check and reach whatever comes behind it.
"""

import random
import struct
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_LEARNED_FIELDS = frozenset(
    ("receipt_handle", "transaction_id", "recall_handle", "message_id", "scroll_id")
)
_MAX_LEARNED = 256
_MAX_DEPTH = 6

_INTEGERS = (0, 1, 2, -1, 31, 32, 33, 1_000, 10**6, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_UNSIGNED = (0, 1, 2, 3, 255, 65_536, 2**31, 2**32 - 1)
_FLOATS = (0.0, 1.0, -1.0, 2.5, 1e308, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    " ",
    "\u3000",
    "\x00",
    "a\x00b",
    "a\nb",
    "\x85",
    "*",
    "||",
    "a||b",
    "a > 1 AND b IS NOT NULL",
    "a BETWEEN 1 AND",
    "(" * 500,
    "NOT " * 2_000 + "TRUE",
    "a" * 127,
    "a" * 128,
    "ä" * 64,
    "🔑",
    "%DLQ%fuzz",
    "TBW102",
    "rmq_sys_x",
    "../../etc/passwd",
    "a" * 70_000,
    "-1",
    "1e999",
)
_BIG_BODY_BYTES = 4 * 1024 * 1024 + 1


class Mutator:
    """Makes requests.

    Args:
        chance: the only source of randomness.
        names: of topics, consumer groups and namespaces that exist.
    """

    def __init__(self, chance: random.Random, names: list[str]) -> None:
        self._chance = chance
        self._names = names
        # Field name -> what such fields of answers held.
        self._learned: dict[str, list[str]] = {}

    def request(self, descriptor: Descriptor, valid: Message | None = None) -> bytes:
        """Return the bytes of a request of a type, perhaps made from a valid one, or of none."""
        chance = self._chance
        if valid is not None and chance.random() < 0.7:
            message = type(valid)()
            message.CopyFrom(valid)
            self._name_learned(message)
            for _ in range(chance.randrange(3)):
                self._change_one(message)
        else:
            message = self._message(descriptor, 0)
        data = message.SerializeToString()
        return self._spoiled(data) if chance.random() < 0.2 else data

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call."""
        chance = self._chance
        headers = []
        if chance.random() < 0.98:
            headers.append(("x-mq-client-id", f"fuzz-{chance.randrange(50)}"))
        if chance.random() < 0.5:
            names = ("JAVA", "HTTP", "GO", "PYTHON", "?", "x" * 1_000)
            headers.append(("x-mq-language", chance.choice(names)))
        if chance.random() < 0.3:
            namespaces = ("", "", "", "other", "no such", "x" * 300)
            headers.append(("x-mq-namespace", chance.choice(namespaces)))
        return tuple(headers)

    def learn(self, response: Message) -> None:
        """Remember handles and ids that a response holds."""
        for field, value in response.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                values = value if field.is_repeated else [value]
                if not _is_map(field):
                    for one in values:
                        self.learn(one)
            elif field.name in _LEARNED_FIELDS and isinstance(value, str) and len(value) < 4_096:
                # A message that is no half has its own id for a transaction id.
                if field.name == "transaction_id" and value == getattr(response, "message_id", ""):
                    continue
                known = self._learned.setdefault(field.name, [])
                if len(known) >= _MAX_LEARNED:
                    known.pop(self._chance.randrange(_MAX_LEARNED))
                known.append(value)

    def _name_learned(self, message: Message) -> None:
        """Let the handles and ids of a message be some that the server gave."""
        for field in message.DESCRIPTOR.fields:
            known = self._learned.get(field.name)
            if known and getattr(message, field.name) == "":
                setattr(message, field.name, self._chance.choice(known))
            elif field.name == "entries":
                for entry in getattr(message, field.name):
                    self._name_learned(entry)

    def _change_one(self, message: Message) -> None:
        """Change one field, of the message itself or deeper."""
        depth = 0
        while True:
            fields: Any = message.DESCRIPTOR.fields
            if not fields:
                return
            field = self._chance.choice(fields)
            deeper = field.message_type is not None and not field.is_repeated
            if not deeper or not message.HasField(field.name) or self._chance.random() < 0.3:
                message.ClearField(field.name)
                self._fill(message, field, depth)
                return
            message, depth = getattr(message, field.name), depth + 1

    def _message(self, descriptor: Descriptor, depth: int) -> Message:
        message = GetMessageClass(descriptor)()
        if depth >= _MAX_DEPTH:
            return message
        for field in descriptor.fields:
            if self._chance.random() < 0.75:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        kind = field.message_type
        if kind is not None and _is_map(field):
            entries = getattr(message, field.name)
            for _ in range(self._count()):
                if kind.fields_by_name["value"].type != FieldDescriptor.TYPE_MESSAGE:
                    entries[self._text(field)] = self._scalar(kind.fields_by_name["value"])
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(self._count()):
                if kind is not None:
                    values.add().CopyFrom(self._message(kind, depth + 1))
                else:
                    values.append(self._scalar(field))
        elif kind is not None:
            getattr(message, field.name).CopyFrom(self._message(kind, depth + 1))
        else:
            setattr(message, field.name, self._scalar(field))

    def _count(self) -> int:
        roll = self._chance.random()
        return self._chance.randrange(300) if roll < 0.01 else self._chance.randrange(4)

    def _scalar(self, field: FieldDescriptor) -> Any:
        chance = self._chance
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                roll = chance.random()
                return bytes(_BIG_BODY_BYTES) if roll < 0.002 else chance.randbytes(int(roll * 64))
            case FieldDescriptor.CPPTYPE_STRING:
                return self._text(field)
            case FieldDescriptor.CPPTYPE_BOOL:
                return chance.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                known = [value.number for value in field.enum_type.values]
                return chance.choice([*known, *known, 99, -1, 2**31 - 1])
            case FieldDescriptor.CPPTYPE_INT32:
                return chance.choice([one for one in _INTEGERS if -(2**31) <= one < 2**31])
            case FieldDescriptor.CPPTYPE_INT64:
                return chance.choice(_INTEGERS)
            case FieldDescriptor.CPPTYPE_UINT32:
                return chance.choice(_UNSIGNED)
            case FieldDescriptor.CPPTYPE_UINT64:
                return chance.choice((*_UNSIGNED, 2**64 - 1))
            case _:
                return chance.choice(_FLOATS)

    def _text(self, field: FieldDescriptor) -> str:
        chance = self._chance
        roll = chance.random()
        known = self._learned.get(field.name)
        if known and roll < 0.7:
            learned = chance.choice(known)
            if chance.random() < 0.7:
                return learned
            place = chance.randrange(len(learned) + 1)
            return learned[:place] + chance.choice("A0_-ä") + learned[place + 1 :]
        if field.name in ("namespace", "resource_namespace"):
            return chance.choice(("", "", "", "other", "no such", "b" * 200))
        if roll < 0.75:
            return chance.choice(self._names)
        return chance.choice(_TEXTS)

    def _spoiled(self, data: bytes) -> bytes:
        chance = self._chance
        spoiled = bytearray(data)
        match chance.randrange(6):
            case 0:
                return chance.randbytes(chance.randrange(200))
            case 1:  # cut off
                return data[: chance.randrange(len(data) + 1)]
            case 2:  # a length far beyond the end
                return data + b"\x0a\xff\xff\xff\xff\x07"
            case 3:  # nested deeper than any parser goes
                for _ in range(chance.randrange(1, 150)):
                    spoiled = bytearray(b"\x0a" + _varint(len(spoiled)) + spoiled)
                return bytes(spoiled)
            case 4:  # known fields with other wire types, fields that nobody knows
                number = chance.randrange(1, 40)
                tail = struct.pack("<Q", chance.getrandbits(64))
                return data + _varint(number << 3 | chance.choice((0, 1, 2, 5))) + tail
            case _:
                for _ in range(chance.randrange(1, 8)):
                    if spoiled:
                        spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
                return bytes(spoiled)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
