"""Choice of the messages that are traced, and the fate of their spans."""

from __future__ import annotations

import random

import pytest

from strata_runtime.metrics import Metrics
from strata_runtime.tracing import (
    Span,
    SpanKind,
    TraceOptions,
    Tracer,
    current_trace_parent,
    inside,
    parse_trace_parent,
)
from strata_testing import ManualClock

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
SEED = 7


def _tracer(clock: ManualClock | None = None, **options: float) -> tuple[Tracer, Metrics]:
    metrics = Metrics()
    bits = random.Random(SEED).getrandbits
    made = TraceOptions(**options)  # type: ignore[arg-type]
    return Tracer(
        made, metrics, clock or ManualClock(5.0, wall_offset_ms=1_000_000 - 5_000), random_bits=bits
    ), metrics


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-x",
        SAMPLED[:-1],
        SAMPLED + "1",
        SAMPLED.upper(),
        "ff" + SAMPLED[2:],
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
    ],
)
def test_what_is_no_trace_parent_is_none(text: str) -> None:
    """Only well formed text with ids that are not zero is a parent."""
    assert parse_trace_parent(text) is None


def test_a_trace_parent_of_a_later_version_is_read() -> None:
    """The parts that a later version adds behind the flags are ignored."""
    parsed = parse_trace_parent(f"01-{TRACE_ID}-{SPAN_ID}-03-more")
    assert parsed is not None
    assert (parsed.trace_id, parsed.span_id, parsed.is_sampled) == (TRACE_ID, SPAN_ID, True)


def test_a_child_follows_its_sampled_parent() -> None:
    """It has the parent's trace, an id of its own, and the clock's times."""
    clock = ManualClock(5.0, wall_offset_ms=1_000_000 - 5_000)
    tracer, _ = _tracer(clock)
    span = tracer.begin("t send", SpanKind.SERVER, SAMPLED, {"a": 1})
    assert span is not None
    clock.advance(0.25)
    span.end()
    span.end(error="too late")
    (ended,) = tracer.buffer.take(10)
    assert (ended.trace_id, ended.parent_span_id) == (TRACE_ID, SPAN_ID)
    assert ended.span_id != SPAN_ID
    assert ended.started_ns == 1_000_000_000_000
    assert ended.ended_ns - ended.started_ns == 250_000_000
    assert (ended.error, ended.attributes) == ("", {"a": 1})


def test_who_is_not_sampled_has_no_span() -> None:
    """Neither a parent without the flag, nor none at all, nor a tracer that is off makes one."""
    tracer, _ = _tracer()
    assert tracer.begin("t", SpanKind.SERVER, SAMPLED[:-1] + "0", may_be_root=True) is None
    assert tracer.begin("t", SpanKind.SERVER, "") is None
    assert tracer.begin("t", SpanKind.SERVER, "", may_be_root=True) is None
    off = Tracer.disabled()
    assert not off.enabled
    assert off.begin("t", SpanKind.SERVER, SAMPLED) is None


def test_the_ratio_of_roots_is_kept() -> None:
    """About as many messages as configured begin a trace."""
    tracer, _ = _tracer(sample_ratio=0.25, max_spans=10)
    roots = sum(
        tracer.begin("t", SpanKind.SERVER, "", may_be_root=True) is not None for _ in range(4_000)
    )
    assert 850 < roots < 1150


def test_a_full_buffer_loses_and_counts() -> None:
    """Spans that do not fit are counted; the oldest are kept."""
    tracer, metrics = _tracer(max_spans=3)
    for number in range(5):
        span = tracer.begin(str(number), SpanKind.INTERNAL, SAMPLED)
        assert span is not None
        span.end()
    assert metrics.counter("strata_trace_spans_lost_total").value() == 2
    assert [span.name for span in tracer.buffer.take(10)] == ["0", "1", "2"]


def test_inside_a_span_calls_pass_it_on() -> None:
    """The context names the span within the block only, and a block that raises fails it."""
    tracer, _ = _tracer()
    span: Span | None = tracer.begin("t", SpanKind.INTERNAL, SAMPLED)
    assert span is not None
    with pytest.raises(KeyError), inside(span):
        assert current_trace_parent() == span.trace_parent
        raise KeyError
    assert current_trace_parent() == ""
    with inside(None):
        assert current_trace_parent() == ""
    (ended,) = tracer.buffer.take(10)
    assert ended.error == "failed"


def test_links_that_are_no_trace_parents_are_left_out() -> None:
    """Only what can be linked is."""
    tracer, _ = _tracer()
    span = tracer.begin("t", SpanKind.INTERNAL, SAMPLED, links=["nonsense", SAMPLED])
    assert span is not None
    assert [link.span_id for link in span.links] == [SPAN_ID]
