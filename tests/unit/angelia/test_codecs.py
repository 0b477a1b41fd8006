"""Codecs: every message of the protos comes back as it was; other bytes are refused by name."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.raft.v1 import raft_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia import avro, ports
from strata_angelia.codec import CODECS, AvroCodec, Codec, JsonCodec
from strata_angelia.ports import AngeliaError

MESSAGES = [
    message
    for file in (admin_pb2, meta_pb2, raft_pb2, storage_pb2)
    for message in file.DESCRIPTOR.message_types_by_name.values()
]
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 3),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(allow_nan=False, width=32),
}


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth + 1)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.binary() if field.type == FieldDescriptor.TYPE_BYTES else st.text(max_size=8)
    return _INTEGERS[field.cpp_type]


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Any:
    """Draw a message of this type with some of its fields set."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if depth > 2 or not draw(st.booleans()):
            continue
        if field.is_repeated and field.message_type and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            keys, values = (_values(entry[name], depth) for name in ("key", "value"))
            getattr(message, field.name).update(draw(st.dictionaries(keys, values, max_size=3)))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_values(field, depth), max_size=2)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_values(field, depth)))
        else:
            setattr(message, field.name, draw(_values(field, depth)))
    return message


@EVERY_CODEC
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_messages_come_back(codec: Codec, data: st.DataObject) -> None:
    """A message is the same after encoding and decoding, whatever its fields hold."""
    descriptor = data.draw(st.sampled_from(MESSAGES), label="type")
    message = data.draw(messages(descriptor))
    assert codec.decode(codec.encode(message), type(message)) == message


@EVERY_CODEC
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_other_bytes_are_refused(codec: Codec, data: st.DataObject) -> None:
    """Any bytes are a message or BAD_REQUEST; nothing else is raised."""
    descriptor = data.draw(st.sampled_from(MESSAGES), label="type")
    message_type = message_factory.GetMessageClass(descriptor)
    whole = codec.encode(data.draw(messages(descriptor)))
    cut = data.draw(st.integers(0, len(whole)))
    garbage = whole[:cut] + data.draw(st.binary(max_size=24))
    try:
        codec.decode(garbage, message_type)
    except AngeliaError as error:
        assert error.code == ports.BAD_REQUEST
        assert error.reason.startswith(f"not a {descriptor.full_name}")


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
@EVERY_CODEC
def test_unsigned_numbers_keep_all_bits(codec: Codec, number: int) -> None:
    """A boot id or hash above 2^63 comes back exactly."""
    message = raft_pb2.Beat(acknowledged_boot_id=number, quiet_hash=number, number=number)
    assert codec.decode(codec.encode(message), raft_pb2.Beat) == message


@EVERY_CODEC
def test_unset_and_zero_differ_where_presence_counts(codec: Codec) -> None:
    """A oneof's empty member and an unset one are told apart, as are optional fields."""
    empty = raft_pb2.FetchSnapshotResponse(refused="")
    assert codec.decode(codec.encode(empty), raft_pb2.FetchSnapshotResponse) == empty
    unset = raft_pb2.FetchSnapshotResponse()
    decoded = codec.decode(codec.encode(unset), raft_pb2.FetchSnapshotResponse)
    assert decoded.WhichOneof("part") is None


def test_json_speaks_the_names_of_the_protos() -> None:
    """Field names are those of the protos; bytes are base64; unknown fields are ignored."""
    message = raft_pb2.DeliverRequest(source_node_id="a", envelopes=b"\0\xff")
    assert json.loads(JsonCodec().encode(message)) == {"source_node_id": "a", "envelopes": "AP8="}
    decoded = JsonCodec().decode(b'{"source_node_id":"b","newer":1}', raft_pb2.DeliverRequest)
    assert decoded == raft_pb2.DeliverRequest(source_node_id="b")


def test_avro_schema_is_what_others_can_use() -> None:
    """A foreign Avro reader understands the bytes with the schema that is derived."""
    schema = avro.schema(raft_pb2.DESCRIPTOR.message_types_by_name["DeliverRequest"])
    assert schema["name"] == "strata.raft.v1.DeliverRequest"
    assert [field["name"] for field in schema["fields"]][:3] == [
        "source_node_id",
        "target_node_id",
        "source_boot_id",
    ]
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert fastavro.schema.to_parsing_canonical_form(parsed)
    assert schema["fields"][4]["type"][0] == "null"


def test_avro_refuses_what_follows_the_record() -> None:
    """Bytes after a record are no part of it."""
    data = AvroCodec().encode(raft_pb2.DeliverResponse(accepted=True))
    with pytest.raises(AngeliaError, match="1 bytes after the record"):
        AvroCodec().decode(data + b"\0", raft_pb2.DeliverResponse)


def test_avro_does_not_build_what_the_bytes_cannot_hold() -> None:
    """An array that announces more items than there are bytes fails at once."""
    data = AvroCodec().encode(
        raft_pb2.FetchSnapshotResponse(rows=raft_pb2.SnapshotRows(keys=[b""]))
    )
    huge = data.replace(b"\x02\x00\x00", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x00")
    assert huge != data
    with pytest.raises(AngeliaError, match=r"EOFError|MemoryError|IndexError|ValueError"):
        AvroCodec().decode(huge, raft_pb2.FetchSnapshotResponse)


def test_avro_has_no_array_of_nothing() -> None:
    """A repeated message without fields is refused: its items would take no bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="t/n.proto", package="t.n", syntax="proto3")
    file.message_type.add(name="Nothing")
    field_type = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Many").field.add(
        name="items", number=1, type=field_type.TYPE_MESSAGE, type_name=".t.n.Nothing", label=3
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    with pytest.raises(TypeError, match=r"t\.n\.Many\.items"):
        avro.schema(pool.FindMessageTypeByName("t.n.Many"))
