"""Spark's side of the data source: what its planner and its tasks call.

Reading is exactly once for a streaming query with a checkpoint: a micro-batch is a range of
offsets that Spark wrote down before it read, and reading changes nothing in the cluster. Writing
is at least once, with ids that make repeats vanish within the dedupe window; see `sending`.

Spark applies every filter again to what it is given, so what is pushed down only has to leave
nothing out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)
from pyspark.sql.streaming.datasource import (
    SupportsTriggerAvailableNow as AvailableNow,
)
from pyspark.sql.types import StructType

from strata_placement.source import plan
from strata_placement.source.client import BrokerClient
from strata_placement.source.messages import COLUMN_NAMES, SCHEMA, record_batch
from strata_placement.source.options import LATEST, OptionError, SourceOptions
from strata_placement.source.plan import QueueSpan
from strata_placement.source.runs import StoredRun
from strata_placement.source.sending import WRITTEN_COLUMNS, requests_of

if TYPE_CHECKING:
    # Imported where it is used: most tasks ask brokers, and each would wait for this.
    from strata_placement.source.tier import TierPiece, TierTopic


class StrataDataSource(DataSource):  # type: ignore[misc]
    """`format("strata")`; the options are those of `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` is given."""
        return "strata"

    def schema(self) -> str:
        """All columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> TopicReader:
        """Read what there is."""
        return TopicReader(SourceOptions.parse(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        """Read what comes."""
        return TopicStreamReader(SourceOptions.parse(self.options), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Write a table; the mode must be append."""
        return TopicWriter(_written(self.options, schema, overwrite), f"job-{uuid.uuid4()}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Write a stream; the output mode must be append."""
        return TopicStreamWriter(_written(self.options, schema, overwrite))


@dataclass
class SpanPartition(InputPartition):  # type: ignore[misc]
    """The range that one task reads.

    Attributes:
        number: tasks take turns with the brokers.
        span: which offsets.
        options: with what filters narrowed.
        pieces: where the tier has them; of no use where brokers are asked.
    """

    number: int
    span: QueueSpan
    options: SourceOptions
    pieces: tuple[TierPiece, ...]

    def runs(self) -> Iterator[StoredRun]:
        """Read it."""
        if self.options.tier:
            from strata_placement.source import tier

            yield from tier.scan(self.options, self.span, self.pieces)
            return
        with BrokerClient(self.options, self.number) as client:
            yield from client.scan(self.span, self.options.tag)


class _SpanReader:
    """Reads partitions, in tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self._columns = tuple(columns)

    def divided(
        self, spans: Iterable[QueueSpan], topic: BrokerClient | TierTopic
    ) -> list[SpanPartition]:
        """Return the tasks for spans."""
        parts = plan.divide(spans, self.options.messages_per_partition)
        return [
            SpanPartition(number, span, self.options, topic.pieces(span))
            for number, span in enumerate(parts)
        ]

    def topic(self) -> BrokerClient | TierTopic:
        """Return who knows what there is to read."""
        if not self.options.tier:
            return BrokerClient(self.options)
        from strata_placement.source.tier import TierTopic

        return TierTopic.open(self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        if not isinstance(partition, SpanPartition):
            # Spark makes one of its own where there is nothing to read.
            return
        for run in partition.runs():
            yield record_batch(run, self._columns)


class TopicReader(_SpanReader, DataSourceReader):  # type: ignore[misc]
    """A batch: what was retained when it was planned."""

    @property
    def pushFilters(self) -> _Pushdown:
        """Leave out queues, tags and times that filters do not want, where Spark tells them."""
        return _Pushdown(self)

    def partitions(self) -> Sequence[SpanPartition]:
        """Plan: queue by queue, epoch by epoch."""
        with self.topic() as topic:
            return self.divided(topic.spans(self.options.begin_ms, self.options.end_ms), topic)


class _Pushdown:
    """Narrows what a batch reads; Spark filters again.

    Spark refuses to plan a reader that has a `pushFilters` of its own while
    `spark.sql.python.filterPushdown.enabled` is off, which is the default. Not to be told of
    filters does no harm here, so this one passes for the inherited method, which Spark knows by
    `__func__`.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterator[Filter]:
        reader = self._reader
        for each in filters:
            reader.options = _narrowed(reader.options, each)
            yield each


class TopicStreamReader(_SpanReader, DataSourceStreamReader, AvailableNow):  # type: ignore[misc]
    """A stream; its offsets are the next ones of all queues."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        # Where a query ends that only wants what there was when it began; None: it goes on.
        self._final: dict[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what there is now: the query ends there."""
        with self.topic() as topic:
            self._final = plan.ends_of(topic.spans())

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins."""
        with self.topic() as topic:
            spans = topic.spans(self.options.begin_ms)
        if self.options.begin_ms is None and self.options.starting == LATEST:
            return plan.ends_of(spans)
        return plan.starts_of(spans)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next micro-batch ends."""
        with self.topic() as topic:
            ends = topic.ends(start)
        if not self.options.tier:
            # Ends before it are those of a topic that was made again: the query goes on there.
            start = plan.not_behind(start, ends)
        wanted = ends if self._final is None else self._final
        return plan.advance(start, wanted, limit.max_rows if isinstance(limit, ReadMaxRows) else 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the options say."""
        limit = self.options.max_messages_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[SpanPartition]:
        """Plan a micro-batch; the same ranges again after a failure."""
        with self.topic() as topic:
            return self.divided(plan.between(topic.spans(), start, end), topic)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: Spark's checkpoint is what counts."""

    def stop(self) -> None:
        """Nothing is kept open."""


class TopicWriter(DataSourceWriter):  # type: ignore[misc]
    """Sends a table; a task that is run again repeats its ids."""

    def __init__(self, options: SourceOptions, origin: str) -> None:
        self._options = options
        self._origin = origin

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send one partition."""
        return _send(self._options, self._origin, iterator)


class TopicStreamWriter(DataSourceStreamWriter):  # type: ignore[misc]
    """Sends a stream; a micro-batch that is run again repeats its ids."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send one partition of a micro-batch."""
        context = TaskContext.get()
        assert context is not None, "called outside a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "called outside a streaming query"
        assert batch is not None, "called outside a micro-batch"
        return _send(self._options, f"{query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what tasks sent is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the micro-batch is run again and repeats its ids."""


def _send(options: SourceOptions, origin: str, rows: Iterator[Row]) -> WriterCommitMessage:
    context = TaskContext.get()
    assert context is not None, "called outside a task"
    partition = context.partitionId()
    dicts = (row.asDict() for row in rows)
    with BrokerClient(options, partition, f"spark@{origin}@{partition}") as client:
        for request in requests_of(dicts, options, f"{origin}/{partition}"):
            client.send(request)
    return WriterCommitMessage()


def _columns(schema: StructType) -> list[str]:
    names: list[str] = schema.fieldNames()
    unknown = [name for name in names if name not in COLUMN_NAMES]
    if unknown:
        raise OptionError(f"no columns {unknown}; there are {', '.join(COLUMN_NAMES)}")
    return names


def _written(options: Any, schema: StructType, overwrite: bool) -> SourceOptions:
    names = set(schema.fieldNames())
    if overwrite:
        raise OptionError("topics are only appended to: use mode append")
    if "body" not in names or names - set(WRITTEN_COLUMNS):
        raise OptionError(f"a topic takes the columns {', '.join(WRITTEN_COLUMNS)}; body is needed")
    parsed = SourceOptions.parse(options)
    if not parsed.endpoints:
        raise OptionError("the option endpoint (host:port of brokers) is needed to write")
    return parsed


def _narrowed(options: SourceOptions, given: Filter) -> SourceOptions:
    """Return options that let through at least what a filter wants."""
    column = given.attribute[0] if len(getattr(given, "attribute", ())) == 1 else ""
    if column == "queue" and isinstance(given, EqualTo | In):
        wanted = {given.value} if isinstance(given, EqualTo) else set(given.value)
        queues = options.queues
        return replace(options, queues=frozenset(wanted if queues is None else wanted & queues))
    if column == "tag" and isinstance(given, EqualTo | In) and not options.tag:
        tags = [given.value] if isinstance(given, EqualTo) else list(given.value)
        # A text that is not a tag by the protocol's rules is none of any message.
        if all(isinstance(tag, str) and tag.strip() and "|" not in tag for tag in tags):
            return replace(options, tag=" || ".join(tags))
    if column == "store_time" and isinstance(getattr(given, "value", None), datetime):
        at_ms = int(given.value.timestamp() * 1_000)
        if isinstance(given, GreaterThan | GreaterThanOrEqual):
            return replace(options, begin_ms=max(options.begin_ms or 0, at_ms))
        if isinstance(given, LessThan | LessThanOrEqual):
            # One millisecond more: the filter's end may be included.
            end_ms = options.end_ms
            return replace(options, end_ms=min(end_ms or at_ms + 1, at_ms + 1))
    return options
