"""Native passes over receives and acks, and their plain twins: the same, or the twin decides."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import wire
from strata_broker.metadata.stored_messages import shown_message
from strata_broker.metadata.topic_rows import TopicRow
from strata_broker.receives.deliver import Given, given_by
from strata_broker.receives.handles import lease_field
from strata_broker.receives.receive_passes import (
    new_ack_pass,
    new_delivery_pass,
    new_receipt_pass,
)
from strata_edge.choice import HOW_TO_GET_IT, installed_passes
from strata_edge.passes import AckPass, DeliveryPass, NativePasses, ReceiptPass
from strata_mq.requests import HandleKeys, ReceiptHandle, encode_handles
from tests.parts.required import absent

PLACE = (3, 5, 101)
HOST = "10.0.0.7"
KEYS = HandleKeys({1: b"a" * 16, 0x1_0002: b"b" * 32}, 0x1_0002)
ORDERS = TopicRow(meta_pb2.Topic(topic_id=PLACE[2], name="orders"))
EDGES = (0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, (1 << 32) - 1)


def passes() -> NativePasses:
    """The installed ones."""
    found = installed_passes()
    if found is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")
    return found


@pytest.fixture(scope="module")
def delivery_pass() -> DeliveryPass:
    """As a broker makes it."""
    made = new_delivery_pass(passes())
    assert made is not None
    return made


@pytest.fixture(scope="module")
def receipt_pass() -> ReceiptPass:
    """As a broker makes it."""
    made = new_receipt_pass(passes())
    assert made is not None
    return made


@pytest.fixture(scope="module")
def ack_pass() -> AckPass:
    """As a broker makes it."""
    made = new_ack_pass(passes())
    assert made is not None
    return made


def signing() -> tuple[int, bytes]:
    """Return the key that signs, for a pass."""
    assert KEYS.signing == (2, b"b" * 32), "the low half of its id"
    return KEYS.signing


def popped(chance: random.Random, count: int) -> storage_pb2.PopResponse:
    """Return messages with any numbers."""
    response = storage_pb2.PopResponse(told_later=True)
    for _ in range(count):
        properties = chance.randbytes(chance.choice((0, 1, 127, 128, 20_000)))
        response.messages.add(
            queue=chance.choice(EDGES),
            offset=chance.choice((*EDGES, (1 << 63) - 1)),
            attempt_count=chance.choice((1, 2, 0x80)),
            lease_number=chance.choice(EDGES),
            generation=chance.choice(EDGES),
            visible_at_ms=chance.choice((0, 1_800_000_000_123)),
            store_time_ms=chance.choice((0, 7, 1_700_000_000_123, 1_700_000_001_000)),
            message=wire.stored_message(properties, b"", chance.randbytes(chance.choice((0, 900)))),
        )
    return response


def test_a_delivery_is_what_the_twin_makes(delivery_pass: DeliveryPass) -> None:
    """Responses, leases, sizes and counts are the same for any numbers."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        response = popped(chance, chance.choice((1, 3)))
        delivered = delivery_pass.deliver(
            response.SerializeToString(), PLACE, HOST.encode(), signing()
        )
        assert delivered is not None
        responses, packed, sizes, counts = delivered
        expected = given_by(*PLACE, response.messages)
        handles = encode_handles(
            [ReceiptHandle(*PLACE, *one, one[4] == 0) for one in expected.leases()], KEYS
        )
        assert responses == [
            shown_message(
                ORDERS,
                leased.message,
                leased.store_time_ms,
                HOST,
                leased.queue,
                leased.offset,
                handle,
                leased.attempt_count,
            )
            for leased, handle in zip(response.messages, handles, strict=True)
        ]
        assert Given(*PLACE, packed) == expected
        for is_retry in (False, True):
            own = [one.message for one in response.messages if (one.attempt_count > 1) is is_retry]
            assert (sizes[is_retry], counts[is_retry]) == (sum(map(len, own)), len(own))


@pytest.mark.parametrize(
    "message",
    [b"", b"\x22\x01a", b"\x1a", b"\x1a\x05ab", b"\x1a\xff\xff\xff\xff\xff\x01ab"],
    ids=["empty", "without properties", "cut", "shorter than it says", "too long a length"],
)
def test_a_message_of_another_form_is_left_to_the_twin(
    delivery_pass: DeliveryPass, message: bytes
) -> None:
    """The pass gives nothing of the whole answer."""
    response = popped(random.Random(1), 1)
    response.messages.add(attempt_count=1, message=message)
    data = response.SerializeToString()
    assert delivery_pass.deliver(data, PLACE, HOST.encode(), signing()) is None


def some_handles(chance: random.Random, count: int) -> list[ReceiptHandle]:
    """Return handles of one place with any other numbers."""
    return [
        ReceiptHandle(
            chance.choice((1, 7)),
            *PLACE[1:],
            chance.choice(EDGES),
            chance.choice((*EDGES, (1 << 64) - 1)),
            chance.choice(EDGES),
            chance.choice(EDGES),
            chance.choice((0, 1_800_000_000_123)),
            chance.random() < 0.5,
        )
        for _ in range(count)
    ]


def test_good_handles_are_read_as_the_twin_reads_them(receipt_pass: ReceiptPass) -> None:
    """Each with its raft group, and as the field of the call to storage."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    handles = some_handles(random.Random(seed), 200)
    texts = encode_handles(handles[:100], KEYS)
    texts += encode_handles(handles[100:], HandleKeys({1: b"a" * 16}, 1))
    leases = [(handle.raft_group, lease_field(handle)) for handle in handles]
    assert receipt_pass.read(texts, KEYS.secrets, *PLACE[1:]) == leases
    request = storage_pb2.GroupLeases()
    request.MergeFromString(b"".join(lease for _, lease in leases))
    for lease, handle in zip(request.leases, handles, strict=True):
        assert (lease.offset, lease.generation) == (handle.offset, handle.generation)


def test_one_bad_handle_leaves_all_to_the_twin(receipt_pass: ReceiptPass) -> None:
    """Damaged, forged, unsigned, cut, of another place or with an unknown key."""
    (handle,) = some_handles(random.Random(2), 1)
    (text,) = encode_handles((handle,), KEYS)
    bad = [text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :] for at in range(68)]
    bad += ["", text[:-1], text + "A", text[:-1] + "ü", text[:-4] + "====", text[:-1] + "+"]
    bad += encode_handles((handle,))
    bad += encode_handles((handle,), HandleKeys({2: b"c" * 32}, 2))
    bad += encode_handles((handle,), HandleKeys({3: b"b" * 32}, 3))
    bad += encode_handles(
        (handle._replace(topic_id=102), handle._replace(consumer_group_id=6)), KEYS
    )
    assert receipt_pass.read([text, text], KEYS.secrets, *PLACE[1:]) is not None
    for other in bad:
        assert receipt_pass.read([text, other], KEYS.secrets, *PLACE[1:]) is None, other


texts = st.one_of(st.text(st.characters(max_codepoint=0x7F), max_size=140), st.text(max_size=20))


@given(
    st.lists(st.tuples(texts, texts), max_size=4),
    st.tuples(*[texts] * 4),
    st.integers(0, 4),
    st.binary(max_size=3),
)
def test_an_ack_is_read_as_the_twin_reads_it(
    ack_pass: AckPass,
    entries: list[tuple[str, str]],
    names: tuple[str, str, str, str],
    cut: int,
    added: bytes,
) -> None:
    """Requests of any form, damaged ones too."""
    request = service_pb2.AckMessageRequest()
    request.group.resource_namespace, request.group.name = names[:2]
    request.topic.resource_namespace, request.topic.name = names[2:]
    for message_id, handle in entries:
        request.entries.add(message_id=message_id, receipt_handle=handle)
    data = request.SerializeToString()
    data = data[: len(data) - cut] + added
    assert ack_pass.read(data) == wire.plain_ack(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_as_the_twin_reads_them(ack_pass: AckPass, data: bytes) -> None:
    """Nearly always neither takes them."""
    assert ack_pass.read(data) == wire.plain_ack(data)
