"""Traces that follow a message through all tiers: spans, W3C `traceparent`, a bounded buffer.

The tracer decides which messages are traced, keeps the running context and collects spans for an
exporter. Invariants:
- An unsampled message costs one check of a text and no object: `Tracer.begin` returns None.
- The buffer holds at most `max_spans`; further spans are counted and lost, and nothing waits.
- A trace parent from outside is used only if it is well formed.

It does not know gRPC, OTLP (see `otlp`) or messages. A span of the OpenTelemetry SDK takes 20 us or
more, and a thread to export it; a span here is one small object.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from strata_runtime import logs
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Metrics, MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_trace_spans_total", "counter", "1", "Spans that ended."),
    MetricSpec(
        "strata_trace_spans_lost_total", "counter", "1", "Spans lost because the buffer was full."
    ),
    MetricSpec("strata_trace_buffered_spans", "gauge", "1", "Spans that wait to be exported."),
    MetricSpec(
        "strata_trace_buffered_spans_maximum",
        "gauge",
        "1",
        "Most spans that may wait to be exported.",
    ),
)

Attribute = str | int | float | bool
Attributes = Mapping[str, Attribute]

_TRACE_PARENT = re.compile(
    "(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED = 1
# How many of these a message may have is the client's choice; a span names no more.
_MAX_LINKS = 32

_current: ContextVar[str] = ContextVar("strata_trace_parent", default="")


class SpanKind(IntEnum):
    """Relation of a span to its parent; the numbers are OpenTelemetry's."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2
    PRODUCER = 3
    CONSUMER = 4


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A parsed `traceparent`: ids as hex text, and whether its sender records it."""

    trace_id: str
    span_id: str
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Share of the messages that is traced, and limits of what is kept.

    Attributes:
        sample_ratio: share, 0 to 1, of the messages without a trace of their own that get one.
        follow_parents: go on with the traces that clients sampled.
        max_spans: spans that wait to be exported.
    """

    sample_ratio: float = 0.0
    follow_parents: bool = True
    max_spans: int = 4_096


def parse_trace_parent(text: str) -> TraceParent | None:
    """Parse a W3C `traceparent`; None: it is none."""
    found = _TRACE_PARENT.match(text)
    if found is None or (found.end() != len(text) and text[found.end()] != "-"):
        return None
    trace_id, span_id, flags = found.groups()
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def current_trace_parent() -> str:
    """The `traceparent` of the running context; "": it is not traced. Calls pass it on."""
    return _current.get()


class SpanIds(NamedTuple):
    """Names of a span, in hexadecimal digits; without a parent the trace begins here."""

    trace_id: str
    span_id: str
    parent_span_id: str


class Span:
    """Something that takes time on behalf of a message. Ended once, by `end`.

    Attributes:
        trace_parent: what children are told.
    """

    __slots__ = (
        "_buffer",
        "attributes",
        "ended_ns",
        "error",
        "kind",
        "links",
        "name",
        "now_ns",
        "parent_span_id",
        "span_id",
        "started_ns",
        "trace_id",
    )

    def __init__(
        self,
        buffer: SpanBuffer,
        now_ns: Callable[[], int],
        name: str,
        *,
        kind: SpanKind,
        ids: SpanIds,
        attributes: dict[str, Attribute],
        links: Sequence[TraceParent],
        started_ns: int,
    ) -> None:
        self._buffer = buffer
        self.now_ns = now_ns
        self.name = name
        self.kind = kind
        self.trace_id, self.span_id, self.parent_span_id = ids
        self.attributes = attributes
        self.links = links
        self.started_ns = started_ns
        self.ended_ns = 0
        self.error = ""

    @property
    def trace_parent(self) -> str:
        """W3C `traceparent` of this span."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    def set(self, name: str, value: Attribute) -> None:
        """Note something about it."""
        self.attributes[name] = value

    def end(self, *, error: str = "") -> None:
        """It is over; with `error` it failed. Ending twice is allowed, the first one counts."""
        if not self.ended_ns:
            self.ended_ns = self.now_ns()
            self.error = error
            self._buffer.add(self)


class SpanBuffer:
    """Ended spans that wait to be exported; see the module docstring."""

    __slots__ = ("_lost", "_max_spans", "_spans", "_total")

    def __init__(self, max_spans: int, metrics: Metrics) -> None:
        metrics.declare(METRICS)
        self._max_spans = max_spans
        self._spans: deque[Span] = deque()
        self._total = metrics.counter("strata_trace_spans_total")
        self._lost = metrics.counter("strata_trace_spans_lost_total")
        metrics.gauge("strata_trace_buffered_spans", lambda: len(self._spans))
        metrics.gauge("strata_trace_buffered_spans_maximum", lambda: self._max_spans)

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Take an ended span, if there is room."""
        self._total.add()
        if len(self._spans) >= self._max_spans:
            self._lost.add()
        else:
            self._spans.append(span)

    def take(self, max_spans: int) -> list[Span]:
        """Remove and return the oldest spans."""
        return [self._spans.popleft() for _ in range(min(max_spans, len(self._spans)))]


class Tracer:
    """Begins spans.

    Args:
        options: which messages are traced.
        metrics: where the buffer shows.
        clock: time; durations follow its monotonic part.
        random_bits: gives ids and chances.

    Attributes:
        enabled: False: nothing is ever traced; hot paths look here first.
        buffer: what ended.
    """

    def __init__(
        self,
        options: TraceOptions,
        metrics: Metrics,
        clock: Clock | None = None,
        *,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._random_bits = random_bits
        self._threshold = round(options.sample_ratio * (1 << 32))
        self._epoch_ns = self._clock.wall_ms() * 1_000_000 - self._monotonic_ns()
        self.enabled = options.follow_parents or self._threshold > 0
        self.buffer = SpanBuffer(options.max_spans, metrics)

    @staticmethod
    def disabled() -> Tracer:
        """A tracer that traces nothing."""
        return Tracer(TraceOptions(0.0, follow_parents=False), Metrics.disabled())

    def now_ns(self) -> int:
        """Wall time in nanoseconds, as monotonic as the clock."""
        return self._epoch_ns + self._monotonic_ns()

    def begin(
        self,
        name: str,
        kind: SpanKind,
        parent: str,
        attributes: Attributes | None = None,
        *,
        links: Sequence[str] = (),
        may_be_root: bool = False,
        started_ns: int | None = None,
    ) -> Span | None:
        """Begin a span if its parent is sampled, or if it begins a sampled trace.

        Args:
            name: low in variety: what is done, and to which topic.
            kind: what it is to its parent.
            parent: `traceparent`; "" or nonsense: there is none.
            attributes: notes.
            links: `traceparent`s of others on whose behalf it is, too.
            may_be_root: without a parent a trace may begin here.
            started_ns: when it began, by `now_ns`; None: now.
        """
        if not self.enabled:
            return None
        known = parse_trace_parent(parent) if parent else None
        if known is not None:
            if not known.is_sampled or not self._options.follow_parents:
                return None
            trace_id, parent_span_id = known.trace_id, known.span_id
        elif may_be_root and self._random_bits(32) < self._threshold:
            trace_id, parent_span_id = f"{self._random_bits(128) or 1:032x}", ""
        else:
            return None
        parsed = (parse_trace_parent(link) for link in links[:_MAX_LINKS])
        return Span(
            self.buffer,
            self.now_ns,
            name,
            kind=kind,
            ids=SpanIds(trace_id, f"{self._random_bits(64) or 1:016x}", parent_span_id),
            attributes=dict(attributes or ()),
            links=[link for link in parsed if link is not None],
            started_ns=self.now_ns() if started_ns is None else started_ns,
        )

    def _monotonic_ns(self) -> int:
        return int(self._clock.monotonic_s() * 1_000_000_000)


@contextmanager
def inside(span: Span | None) -> Iterator[None]:
    """Run the block on behalf of a span: calls pass it on, log lines carry its trace id.

    The span ends with the block, as failed if the block raised.
    """
    if span is None:
        yield
        return
    token = _current.set(span.trace_parent)
    error = "failed"
    try:
        with logs.request_context(trace_parent=span.trace_parent):
            yield
        error = ""
    finally:
        _current.reset(token)
        span.end(error=error)
