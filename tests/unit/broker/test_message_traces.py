"""Sends and deliveries that are spans, and the traces that they belong to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.message_traces import MessageTraces
from strata_broker.base.wire import stored_message, system_properties_end
from strata_broker.sends.pending_send import PendingSend
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_runtime.tracing import TraceOptions, Tracer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE_ID}-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


def _traces() -> MessageTraces:
    return MessageTraces(Tracer(TraceOptions(), Metrics()))


def _message(trace_context: str = "", **properties: str) -> definition_pb2.Message:
    message = definition_pb2.Message(body=b"x", user_properties=properties)
    message.topic.name = "orders"
    message.system_properties.message_id = "id"
    if trace_context:
        message.system_properties.trace_context = trace_context
    return message


@pytest.mark.parametrize(
    ("message", "metadata"),
    [
        (_message(SAMPLED, traceparent=OTHER), {"traceparent": OTHER}),
        (_message(traceparent=SAMPLED), {"traceparent": OTHER}),
        (_message(), {"traceparent": SAMPLED}),
    ],
)
def test_the_nearest_word_on_the_trace_counts(
    message: definition_pb2.Message, metadata: dict[str, str]
) -> None:
    """Trace context before user property before the call's metadata."""
    span = _traces().sent(metadata, [message])
    assert span is not None
    assert (span.trace_id, span.name) == (TRACE_ID, "orders send")


def test_a_message_without_trace_context_gets_the_sends() -> None:
    """A client's trace context is left alone; a message without one is found again at delivery."""
    messages = [_message(SAMPLED), _message()]
    span = _traces().sent({}, messages)
    assert span is not None
    contexts = [message.system_properties.trace_context for message in messages]
    assert contexts == [SAMPLED, span.trace_parent]


def test_a_send_that_nobody_traces_is_left_alone() -> None:
    """No span, and not a byte of the message changes."""
    message = _message()
    before = message.SerializeToString()
    assert _traces().sent({}, [message]) is None
    assert message.SerializeToString() == before


def test_a_send_that_is_refused_before_it_is_staged_ends_its_span() -> None:
    """So does a send whose lite topic could not be looked up; the span has the reason."""
    traces, refusals = _traces(), list[object]()
    sender: Any = SimpleNamespace(refuse=lambda *refusal: refusals.append(refusal))
    call: Any = SimpleNamespace(request=b"")
    topic: Any = None
    pending = PendingSend(
        sender,
        call,
        ["id"],
        outgoing=[],
        topic=topic,
        started_s=1.0,
        deadline_s=2.0,
        span=traces.sent({"traceparent": SAMPLED}, [_message()]),
    )
    refusal = RequestError(Code.LITE_TOPIC_QUOTA_EXCEEDED, "too many lite topics")
    pending.refuse(refusal)
    (span,) = traces.tracer.buffer.take(10)
    assert (span.name, span.error) == ("orders send", "too many lite topics")
    assert refusals == [(call, 1, refusal, 1.0)]


def _stored(message: definition_pb2.Message, added: bytes = b"") -> bytes:
    properties = message.system_properties.SerializeToString()
    message.ClearField("system_properties")
    return stored_message(properties, added, message.SerializeToString())


@pytest.mark.parametrize("padding", [0, 200, 20_000])
def test_the_system_properties_of_a_stored_message_end_where_the_rest_begins(padding: int) -> None:
    """The end is found for any length of their length."""
    message = _message()
    message.system_properties.born_host = "h" * padding
    stored = _stored(message)
    rest = definition_pb2.Message.FromString(stored[system_properties_end(stored) :])
    assert rest.body == b"x"
    assert not rest.HasField("system_properties")


def test_deliveries_of_traced_messages_are_spans() -> None:
    """Also of one whose body looks like a trace context; not of one that is not sampled."""
    traces = _traces()
    faked = _message(body_like="")
    faked.body = b"\x92\x01\x37" + OTHER.encode()
    popped = storage_pb2.PopResponse()
    for number, message in enumerate([_message(SAMPLED), _message(SAMPLED[:-1] + "0"), faked]):
        popped.messages.add(message=_stored(message), queue=1, offset=number, attempt_count=2)
    traces.delivered("orders", "g", popped, "broker:1")
    (span,) = traces.tracer.buffer.take(10)
    assert (span.name, span.trace_id) == ("orders receive", TRACE_ID)
    assert span.attributes["strata.offset"] == 0
    assert span.attributes["strata.attempt"] == 2
    assert span.attributes["messaging.consumer.group.name"] == "g"
