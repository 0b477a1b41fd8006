"""Fragments merge into a message as protobuf says, whatever the client wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2 as wire
from strata_mq.traces.delivery import (
    DeadLetterOrigin,
    delivery_fragment,
    store_fragment,
    user_property_fragment,
)

STORE_TIME_MS = 1_795_257_925_589
MD5 = "9DD4E461268C8034F5C8564E155C67A6"


def sent() -> bytes:
    """Properties in which a client already claims what only the server may say."""
    properties = wire.SystemProperties()
    properties.message_id = "id"
    properties.store_timestamp.seconds = 1
    properties.store_timestamp.nanos = 2
    properties.store_host = "elsewhere"
    properties.receipt_handle = "forged"
    properties.queue_id = 99
    properties.queue_offset = 99
    properties.delivery_attempt = 99
    properties.body_digest.type = wire.CRC32
    properties.body_digest.checksum = "forged"
    return properties.SerializeToString()


def merged(fragment: bytes) -> wire.SystemProperties:
    return wire.SystemProperties.FromString(sent() + fragment)


@given(
    st.integers(0, 2**45),
    st.text(max_size=20),
    st.text(max_size=200),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**16),
)
def test_a_delivery_overrides_every_field_it_owns(
    store_time_ms: int, store_host: str, handle: str, queue: int, offset: int, attempt: int
) -> None:
    """Zeros too: nothing that a client claimed shows through."""
    properties = merged(
        delivery_fragment(store_time_ms, store_host, handle, queue, offset, attempt)
    )
    stamp = properties.store_timestamp
    assert stamp.seconds * 1000 + stamp.nanos / 1e6 == store_time_ms
    assert properties.store_host == store_host
    assert properties.receipt_handle == handle
    assert (properties.queue_id, properties.queue_offset) == (queue, offset)
    assert properties.delivery_attempt == attempt
    assert properties.message_id == "id"
    assert not properties.HasField("dead_letter_queue")


def test_a_dead_letter_says_where_it_came_from() -> None:
    """Origin topic and id are readable fields of the delivered message."""
    fragment = delivery_fragment(
        STORE_TIME_MS, "host:1", "handle", 0, 0, 1, DeadLetterOrigin("orders", "id-1")
    )
    origin = merged(fragment).dead_letter_queue
    assert (origin.topic, origin.message_id) == ("orders", "id-1")


def test_a_stored_message_has_digest_and_encoding() -> None:
    """MD5 in upper-case hex and IDENTITY replace what the client wrote."""
    properties = merged(store_fragment(MD5))
    assert (properties.body_digest.type, properties.body_digest.checksum) == (wire.MD5, MD5)
    assert properties.body_encoding == wire.IDENTITY
    assert properties.message_type == wire.MESSAGE_TYPE_UNSPECIFIED


def test_a_stored_message_can_be_given_its_real_type() -> None:
    """The type overrides the client's; the encoding it named stays."""
    properties = merged(store_fragment(MD5, message_type=wire.FIFO, set_identity=False))
    assert properties.message_type == wire.FIFO
    assert properties.body_encoding == wire.ENCODING_UNSPECIFIED


def test_a_user_property_can_be_added() -> None:
    """Long names and values get their lengths right."""
    sent_bytes = wire.Message(body=b"x", user_properties={"a": "b"}).SerializeToString()
    fragment = user_property_fragment("n" * 300, "v" * 20_000)
    message = wire.Message.FromString(sent_bytes + fragment)
    assert dict(message.user_properties) == {"a": "b", "n" * 300: "v" * 20_000}
