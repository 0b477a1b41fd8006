"""The native pass over sends and its plain twin: the same bytes, or the twin decides.

The twin parses and prepares as if there were no pass. The pass may leave any request to the twin,
except the usual messages of clients.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base import wire
from strata_broker.base.config import TransactionSection
from strata_broker.base.group_clock import GroupClock
from strata_broker.metadata.requests import Caller
from strata_broker.metadata.topic_rows import TopicRow
from strata_broker.sends.outgoing import (
    MessagePreparer,
    ParsedSend,
    parse_send,
    read_send,
)
from strata_broker.sends.send_pass import new_send_pass
from strata_edge.choice import HOW_TO_GET_IT, installed_passes
from strata_edge.passes import AlikeCalls, Call, SendPass
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import RESERVED_PROPERTIES, Code, Limits, MessageType, RequestError
from strata_testing.broker.client import Client
from strata_testing.broker.client import message as a_message
from strata_testing.clock import ManualClock
from tests.parts.required import absent

NOW_MS = 1_700_000_000_000
MAX_MESSAGES = 4
CALLER = Caller("client-1", "of-the-client")
LIMITS = Limits(
    max_body_bytes=1_000,
    max_properties_bytes=200,
    max_overhead_bytes=600,
    max_property_count=4,
    max_key_count=3,
    max_delay_ms=60_000,
)
TOPIC_TYPES = (
    meta_pb2.TOPIC_TYPE_NORMAL,
    meta_pb2.TOPIC_TYPE_FIFO,
    meta_pb2.TOPIC_TYPE_DELAY,
    meta_pb2.TOPIC_TYPE_TRANSACTION,
    meta_pb2.TOPIC_TYPE_MIXED,
)
MIXED = TopicRow(meta_pb2.Topic(topic_id=7, name="orders", type=meta_pb2.TOPIC_TYPE_MIXED))

Edit = Callable[[definition_pb2.Message], None]


@pytest.fixture(scope="module")
def send_pass() -> SendPass[OutgoingMessage]:
    """The pass, with small limits."""
    passes = installed_passes()
    if passes is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")
    return new_send_pass(passes, LIMITS, MAX_MESSAGES)


@pytest.fixture
def preparer(send_pass: SendPass[OutgoingMessage]) -> MessagePreparer:
    """With the same limits; requests that come with their messages are the twin's."""
    clock = GroupClock(ManualClock(now_s=0, wall_offset_ms=NOW_MS))
    return MessagePreparer(
        LIMITS, TransactionSection(), google_crc32c.value, clock=clock, send_pass=send_pass
    )


def message(number: int = 1) -> definition_pb2.Message:
    """A message as clients send it, with some of everything."""
    properties = definition_pb2.SystemProperties(
        tag="paid",
        keys=["order-1", "customer-9"],
        message_id=f"01{number:032X}",
        body_digest=definition_pb2.Digest(type=definition_pb2.CRC32, checksum="0A1B"),
        body_encoding=definition_pb2.GZIP,
        message_type=definition_pb2.NORMAL,
        born_host="häuschen",
        queue_id=3,
        trace_context="00-ü-01",
    )
    properties.born_timestamp.FromMilliseconds(NOW_MS - 7)
    return definition_pb2.Message(
        topic=definition_pb2.Resource(resource_namespace="shop", name="orders"),
        user_properties={"colour": "blue"},
        system_properties=properties,
        body=b"x" * 300,
    )


def request_of(*messages: definition_pb2.Message) -> bytes:
    """Serialise a request."""
    return service_pb2.SendMessageRequest(messages=messages).SerializeToString()


def outcome(
    preparer: MessagePreparer, parse: Callable[[], ParsedSend], topic: TopicRow
) -> tuple[Any, ...]:
    """Return what a request comes to: what is stored, or the refusal."""
    try:
        parsed = parse()
        outgoing = list(preparer.prepare_all(parsed, topic))
    except RequestError as refusal:
        return refusal.code, refusal.text
    return parsed.topic, parsed.client_id, list(parsed.message_ids), list(map(comparable, outgoing))


def comparable(one: OutgoingMessage) -> tuple[Any, ...]:
    """Return a message without the order of its user properties, which no serialiser keeps."""
    assert google_crc32c.value(one.stored) == one.checksum
    stored = definition_pb2.Message.FromString(one.stored)
    if len(stored.user_properties) < 2:
        return one
    canonical = stored.SerializeToString(deterministic=True)
    assert stored.ByteSize() == len(canonical)
    return one._replace(stored=canonical, checksum=0)


def assert_same(
    send_pass: SendPass[OutgoingMessage],
    preparer: MessagePreparer,
    request: bytes,
    topic: TopicRow,
) -> bool:
    """Check what the pass takes against the twin; return whether it took it."""
    read = read_send(request, CALLER, send_pass)
    if read is None:
        return False
    expected = outcome(preparer, lambda: parse_send(request, CALLER, MAX_MESSAGES), topic)
    assert outcome(preparer, lambda: read, topic) == expected, request.hex()
    return True


def _set(**fields: Any) -> Edit:
    def edit(one: definition_pb2.Message) -> None:
        one.system_properties.MergeFrom(definition_pb2.SystemProperties(**fields))

    return edit


def _clear(*names: str) -> Edit:
    def edit(one: definition_pb2.Message) -> None:
        for name in names:
            one.system_properties.ClearField(name)  # type: ignore[arg-type]

    return edit


def _deliver_in(milliseconds: int) -> Edit:
    def edit(one: definition_pb2.Message) -> None:
        one.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + milliseconds)

    return edit


def _to_the_nanosecond(one: definition_pb2.Message) -> None:
    one.system_properties.delivery_timestamp.nanos = 1
    one.system_properties.delivery_timestamp.seconds = NOW_MS // 1000
    one.system_properties.born_timestamp.nanos = 1_999_999


def _without_namespace(one: definition_pb2.Message) -> None:
    one.topic.ClearField("resource_namespace")


def _properties(count: int) -> Edit:
    def edit(one: definition_pb2.Message) -> None:
        one.user_properties.clear()
        for number in range(count):
            one.user_properties[f"p{number}"] = "" if number else "v" * 150

    return edit


USUAL: dict[str, Edit] = {
    "all of it": lambda one: None,
    "little": _clear("tag", "keys", "body_digest", "body_encoding", "born_host", "trace_context"),
    "no type": _clear("message_type"),
    "no queue": _clear("queue_id"),
    "no born time": _clear("born_timestamp"),
    "empty tag": _set(tag=""),
    "foreign id": _set(message_id="order 4711"),
    "id that looks official": _set(message_id="01" + "a" * 32),
    "id of zeros": _set(message_id="0" * 34),
    "another type": _set(message_type=definition_pb2.PRIORITY),
    "message group": _set(message_group="g", message_type=definition_pb2.FIFO),
    "longest message group": _set(message_group="g" * 63),
    "delay": _deliver_in(1_000),
    "past": _deliver_in(-NOW_MS + 1_000),
    "rounded times": _to_the_nanosecond,
    "half": _set(message_type=definition_pb2.TRANSACTION),
    "grouped half": _set(message_type=definition_pb2.TRANSACTION, message_group="g"),
    "delivered before": _set(delivery_attempt=0, queue_offset=0),
    "namespace of the client": _without_namespace,
    "most properties": _properties(4),
    "longest body": lambda one: setattr(one, "body", b"y" * 1_000),
}


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("topic_type", TOPIC_TYPES)
def test_what_clients_send_is_taken(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer, name: str, topic_type: int
) -> None:
    """Byte for byte as the twin does; what the topic does not take is refused by the twin."""
    one = message()
    USUAL[name](one)
    topic = TopicRow(meta_pb2.Topic(topic_id=7, name="orders", type=topic_type))  # type: ignore[arg-type]
    assert assert_same(send_pass, preparer, request_of(one), topic)


def test_a_request_of_many(send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer) -> None:
    """Its messages keep their order."""
    request = request_of(*map(message, range(MAX_MESSAGES)))
    assert assert_same(send_pass, preparer, request, MIXED)
    read = read_send(request, CALLER, send_pass)
    assert read is not None
    assert read.message_ids == [f"01{number:032X}" for number in range(MAX_MESSAGES)]
    assert read.topic == ("shop", "orders")
    outgoing = preparer.prepare_all(read, MIXED)
    assert all(type(one) is OutgoingMessage for one in outgoing)
    assert all(one.message_type is MessageType.NORMAL for one in outgoing)


def test_a_delay_that_is_too_long_is_refused_by_the_twin(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer
) -> None:
    """The pass knows no time."""
    for late_ms in (0, 1):
        one = message()
        _deliver_in(LIMITS.max_delay_ms + late_ms)(one)
        read = read_send(request_of(one), CALLER, send_pass)
        assert read is not None
        made = outcome(preparer, lambda read=read: read, MIXED)  # type: ignore[misc]
        assert (made[0] is Code.ILLEGAL_DELIVERY_TIME) == bool(late_ms)


def _broken() -> Iterator[tuple[str, Edit]]:
    yield "no body", lambda one: one.ClearField("body")
    yield "body too large", lambda one: setattr(one, "body", b"y" * 1_001)
    yield "no properties", lambda one: one.ClearField("system_properties")
    yield "no id", _clear("message_id")
    yield "blank id", _set(message_id="  ")
    yield "long id", _set(message_id="i" * 256)
    yield "blank tag", _set(tag=" ")
    yield "tag with a bar", _set(tag="a|b")
    yield "tag with a tabulator", _set(tag="a\tb")
    yield "empty key", _set(keys=[""])
    yield "blank key", _set(keys=[" "])
    yield "key with a line end", _set(keys=["a\n"])
    yield "too many keys", _set(keys=["a", "b"])
    yield "empty message group", _set(message_group="")
    yield "blank message group", _set(message_group=" ")
    yield "long message group", _set(message_group="g" * 64)
    yield "too many properties", _properties(5)
    yield "large properties", lambda one: one.user_properties.update(x="v" * 200)
    yield "control character", lambda one: one.user_properties.update(x="\x7f")
    yield "large overhead", _set(trace_context="t" * 600)
    yield (
        "half with a delay",
        lambda one: (
            _deliver_in(1)(one),
            _set(message_type=definition_pb2.TRANSACTION)(one),
        )[0],
    )
    for name in sorted(RESERVED_PROPERTIES):
        yield f"reserved {name}", lambda one, name=name: one.user_properties.update({name: "v"})  # type: ignore[misc]


BROKEN = dict(_broken())


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_left_to_the_twin(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer, name: str
) -> None:
    """The twin refuses it, with RocketMQ's code and text."""
    one = message()
    BROKEN[name](one)
    for request in (request_of(one), request_of(message(), one)):
        assert read_send(request, CALLER, send_pass) is None
        made = outcome(preparer, lambda r=request: parse_send(r, CALLER, MAX_MESSAGES), MIXED)  # type: ignore[misc]
        assert isinstance(made[0], Code), name


class Counting:
    """The pass; counts what it hashes and copies."""

    def __init__(self, send_pass: SendPass[OutgoingMessage]) -> None:
        self._send_pass = send_pass
        self.stored = 0

    def read(self, request: bytes) -> tuple[str, str, list[str]] | None:
        """See `SendPass.read`."""
        return self._send_pass.read(request)

    def store_each(
        self, requests: Sequence[bytes], senders: Sequence[bytes]
    ) -> list[list[OutgoingMessage]]:
        """See `SendPass.store_each`."""
        self.stored += len(requests)
        return self._send_pass.store_each(requests, senders)

    def sent(self, message_ids: Sequence[str], offsets: Sequence[int]) -> bytes:
        """See `SendPass.sent`."""
        return self._send_pass.sent(message_ids, offsets)

    def gather(
        self, calls: list[Call], max_request_bytes: int
    ) -> tuple[list[AlikeCalls[Call]], list[Call]]:
        """See `SendPass.gather`."""
        return self._send_pass.gather(calls, max_request_bytes)

    def answer_each(
        self, calls: list[Call], message_ids: Sequence[Sequence[str]], offsets: Sequence[int]
    ) -> list[tuple[int, Exception]]:
        """See `SendPass.answer_each`."""
        return self._send_pass.answer_each(calls, message_ids, offsets)


async def test_a_refused_send_is_not_hashed(
    send_pass: SendPass[OutgoingMessage], app: BrokerApp, client: Client
) -> None:
    """A body costs nothing before the topic and its quota were looked at."""
    counting = app._sender._send_pass = Counting(send_pass)
    app._sender._preparer._send_pass = counting
    refused = await client.send(a_message("nowhere", 1))
    assert (refused.status.code, counting.stored) == (definition_pb2.TOPIC_NOT_FOUND, 0)
    sent = await client.send(a_message("orders", 2))
    assert (sent.status.code, counting.stored) == (definition_pb2.OK, 1)


def test_requests_that_are_no_sends(send_pass: SendPass[OutgoingMessage]) -> None:
    """Nothing, too much, two topics, and fields that nobody knows."""
    other = message()
    other.topic.name = "bills"
    plain = request_of(message())
    for request in (
        b"",
        request_of(*map(message, range(MAX_MESSAGES + 1))),
        request_of(message(), other),
        plain + b"\x10\x01",
        plain[:-1],
        b"\x0a\x00" * 4,
        b"\xff" * 40,
    ):
        assert read_send(request, CALLER, send_pass) is None
        with pytest.raises(ValueError, match="the request was not read"):
            send_pass.store_each([plain, request], [b"", b""])


def test_each_request_needs_its_sender(send_pass: SendPass[OutgoingMessage]) -> None:
    """None is stored with the sender of another."""
    with pytest.raises(ValueError, match="a sender for each request is needed"):
        send_pass.store_each([request_of(message())], [])
    assert send_pass.store_each([], []) == []


@pytest.mark.parametrize("rounds", [60])
def test_requests_of_a_turn_are_stored_as_each_by_itself(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer, rounds: int
) -> None:
    """Bodies are hashed side by side: each message has the digest of its own, and its sender."""
    chance = _chance()
    for _ in range(rounds):
        sends = []
        for number in range(chance.randrange(1, 12)):
            # Often about the lengths at which MD5 begins another block, and often the same ones.
            bodies = [
                chance.randbytes(
                    chance.choice((1, 55, 56, 64, 119, 120, 300, chance.randint(1, 999)))
                )
                for _ in range(chance.randint(1, MAX_MESSAGES))
            ]
            request = request_of(*map(_with_body, bodies))
            sent = read_send(request, Caller(f"client-{number % 3}", ""), send_pass)
            assert sent is not None
            sends.append(sent)
        together = preparer.prepare_each(sends, [MIXED] * len(sends))
        for sent, stored in zip(sends, together, strict=True):
            twin = parse_send(sent.request, Caller(sent.client_id, ""), MAX_MESSAGES)
            alone = preparer.prepare_all(twin, MIXED)
            assert list(map(comparable, stored)) == list(map(comparable, alone))


def _with_body(body: bytes) -> definition_pb2.Message:
    one = message()
    one.body = body
    return one


def test_one_property_twice_is_the_last(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer
) -> None:
    """A parser keeps the last; the pass does not choose."""
    one = message()
    once = one.SerializeToString()
    entry = b"\x12\x0e\x0a\x06colour\x12\x04blue"
    assert entry in once
    doubled = once.replace(entry, entry + entry.replace(b"blue", b"grey"))
    request = b"\x0a" + _varint(len(doubled)) + doubled
    assert read_send(request, CALLER, send_pass) is None
    stored = preparer.prepare_all(parse_send(request, CALLER, MAX_MESSAGES), MIXED)[0].stored
    assert definition_pb2.Message.FromString(stored).user_properties == {"colour": "grey"}


@pytest.mark.parametrize("rounds", [400])
def test_random_messages(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer, rounds: int
) -> None:
    """Messages have any fields and texts: the pass takes them as the twin does."""
    chance = _chance()
    taken = sum(
        assert_same(send_pass, preparer, request_of(*_random_messages(chance)), MIXED)
        for _ in range(rounds)
    )
    assert taken > rounds // 10


@pytest.mark.parametrize("rounds", [6_000])
def test_damaged_bytes(
    send_pass: SendPass[OutgoingMessage], preparer: MessagePreparer, rounds: int
) -> None:
    """Requests have any bytes: the pass takes nothing that the twin refuses or reads otherwise."""
    chance = _chance()
    sources = [request_of(message(), message(2))]
    for edit in USUAL.values():
        one = message()
        edit(one)
        sources.append(request_of(one))
    taken = 0
    for _ in range(rounds):
        data = bytearray(chance.choice(sources))
        for _ in range(chance.randrange(1, 4)):
            _damage(data, chance)
        taken += assert_same(send_pass, preparer, bytes(data), MIXED)
    assert taken > rounds // 100


def _chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def _damage(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data)) if data else 0
    match chance.randrange(4):
        case 0 if data:
            data[at] = chance.randrange(256)
        case 1 if data:
            data[at] ^= 1 << chance.randrange(8)
        case 2:
            data[at : at + chance.randrange(4)] = b""
        case _:
            data[at:at] = chance.randbytes(chance.randrange(1, 4))


def _random_messages(chance: random.Random) -> list[definition_pb2.Message]:
    made = []
    for number in range(chance.choice((1, 1, 1, 2, MAX_MESSAGES, MAX_MESSAGES + 1))):
        one = message(number)
        for name in chance.sample(sorted(USUAL), chance.randrange(3)):
            USUAL[name](one)
        if not chance.randrange(4):
            BROKEN[chance.choice(sorted(BROKEN))](one)
        if not chance.randrange(3):
            one.user_properties[_text(chance)] = _text(chance)
        if not chance.randrange(3):
            one.system_properties.keys.append(_text(chance))
        if not chance.randrange(6):
            one.system_properties.tag = _text(chance)
        made.append(one)
    return made


def _text(chance: random.Random) -> str:
    letters = string.ascii_letters + " " if chance.randrange(3) else "aä漢\x00\x85\u3000 |"
    return "".join(chance.choices(letters, k=chance.randrange(1, 12)))


def _varint(value: int) -> bytes:
    return bytes((value & 0x7F | 0x80, value >> 7)) if value > 0x7F else bytes((value,))


@given(
    st.lists(
        st.tuples(st.text(max_size=300), st.integers(0, (1 << 63) - 1)), min_size=1, max_size=5
    )
)
def test_an_answer_is_what_the_twin_makes(
    send_pass: SendPass[OutgoingMessage], results: list[tuple[str, int]]
) -> None:
    """Ids of any length and characters, offsets of any size."""
    message_ids, offsets = [one[0] for one in results], [one[1] for one in results]
    assert send_pass.sent(message_ids, offsets) == wire.sent(message_ids, offsets)


def test_an_answer_needs_an_offset_for_each_message(send_pass: SendPass[OutgoingMessage]) -> None:
    """Nothing is left out in silence."""
    with pytest.raises(ValueError, match="an offset for each message"):
        send_pass.sent(["a", "b"], [1])
