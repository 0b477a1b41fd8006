"""Properties read from stored bytes, against protobuf's own reading of the same bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2 as wire
from strata_broker.base.wire import stored_message
from strata_mq.layout.stored_properties import PropertyReader, tag_of
from strata_mq.requests.validation import RESERVED_PROPERTIES
from strata_mq.traces.delivery import store_fragment, user_property_fragment

SYSTEM_NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "BORN_TIMESTAMP", "__BORNHOST")
# Users cannot set what RocketMQ names so: a send that tries is refused.
NAMES = (st.sampled_from(("a", "region", "x" * 130, "名", "")) | st.text(max_size=5)).filter(
    lambda name: name not in RESERVED_PROPERTIES
)
VALUES = st.sampled_from(("", "10", "y" * 127, "z" * 300, "é")) | st.text(max_size=20)


@st.composite
def messages(draw: st.DrawFn) -> wire.Message:
    message = wire.Message(topic=wire.Resource(name="orders"), body=draw(st.binary(max_size=400)))
    message.user_properties.update(draw(st.dictionaries(NAMES, VALUES, max_size=6)))
    system = message.system_properties
    system.message_id = draw(st.text(max_size=40))
    system.keys.extend(draw(st.lists(st.text(min_size=1, max_size=5), max_size=3)))
    if draw(st.booleans()):
        system.tag = draw(st.text(min_size=1, max_size=5))
    if draw(st.booleans()):
        system.born_timestamp.FromMilliseconds(draw(st.integers(0, 1 << 42)))
        system.born_host = draw(st.text(max_size=10))
    system.message_group = draw(st.text(max_size=5))
    return message


def stored(message: wire.Message) -> bytes:
    """Return what the broker stores of a message."""
    rest = wire.Message()
    rest.CopyFrom(message)
    rest.ClearField("system_properties")
    own = message.system_properties.SerializeToString()
    return stored_message(own, store_fragment("A" * 32), rest.SerializeToString())


def expected(message: wire.Message, names: frozenset[str]) -> dict[str, str]:
    system = message.system_properties
    known = dict(message.user_properties)
    if system.HasField("tag"):
        known["TAGS"] = system.tag
    if system.keys:
        known["KEYS"] = " ".join(system.keys)
    if system.message_id:
        known["UNIQ_KEY"] = system.message_id
    if system.HasField("born_timestamp"):
        known["BORN_TIMESTAMP"] = str(system.born_timestamp.ToMilliseconds())
    if system.born_host:
        known["__BORNHOST"] = system.born_host
    return {name: text for name, text in known.items() if name in names}


@settings(max_examples=300, deadline=None)
@given(
    message=messages(),
    others=st.sets(NAMES, max_size=3),
    system=st.sets(st.sampled_from(SYSTEM_NAMES)),
)
def test_what_is_read_is_what_protobuf_reads(
    message: wire.Message, others: set[str], system: set[str]
) -> None:
    """For any message and names, in the stored form and in any other."""
    names = frozenset(others | system | set(list(message.user_properties)[:3]))
    for data in (stored(message), message.SerializeToString()):
        assert PropertyReader(names).read(data) == expected(message, names)
    assert tag_of(stored(message)) == message.system_properties.tag


def test_a_later_field_replaces_an_earlier_one() -> None:
    """As in protobuf: the last entry of a name counts."""
    data = user_property_fragment("a", "1") + user_property_fragment("b", "2")
    data += user_property_fragment("a", "3" * 200)
    assert PropertyReader(("a", "b")).read(data) == {"a": "3" * 200, "b": "2"}


def test_unusual_encodings_are_read_too() -> None:
    """A value before its key, a missing one, unknown fields of every wire type, long lengths."""
    reader = PropertyReader(("a", ""))
    assert reader.read(b"\x12\x06\x12\x01v\x0a\x01a") == {"a": "v"}
    assert reader.read(b"\x12\x03\x0a\x01a") == {"a": ""}
    assert reader.read(b"\x12\x00") == {"": ""}
    assert reader.read(b"\x12\x87\x00\x0a\x01a\x12\x81\x00v") == {"a": "v"}
    assert reader.read(b"\x12\x07\x0a\x01a\x12\x81\x00v") == {"a": "v"}
    unknown = b"\x28\x96\x01" + b"\x31" + bytes(8) + b"\x3d" + bytes(4) + b"\xfa\x01\x01x"
    assert reader.read(unknown + user_property_fragment("a", "v") + unknown) == {"a": "v"}


def test_bytes_that_are_no_message_are_told_apart() -> None:
    """Cut and flipped messages give properties or ValueError, never anything else."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    message = wire.Message(user_properties={"a": "1", "region": "eu"}, body=b"body")
    message.system_properties.tag = "t"
    message.system_properties.born_timestamp.seconds = 5
    whole = stored(message)
    reader = PropertyReader(("a", "region", *SYSTEM_NAMES))
    broken = [whole[:length] for length in range(len(whole))]
    for _ in range(20_000):
        flipped = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        broken.append(bytes(flipped))
    for data in broken:
        for read in (reader.read, tag_of):
            try:
                read(data)
            except ValueError:
                continue
    with pytest.raises(ValueError, match="begins with its system properties"):
        tag_of(b"\x0a\x00")
    with pytest.raises(ValueError, match="64 bits"):
        reader.read(b"\x28" + b"\xff" * 11)
    with pytest.raises(ValueError, match="wire type"):
        reader.read(b"\x2b")
