"""Metric windows: measurements of a node over ten seconds, as columns, and their bytes.

Storage nodes and brokers send them to the internal topic `__strata_metrics`; placement reads them.
One message holds the windows of one kind from one node over one time; its layout is section 10 of
`docs/data-layout.md`.

Invariants:
- A batch names its columns, so that a reader skips unknown columns and uses the default for columns
  that an older writer did not send.
- A batch is never larger than `MAX_BATCH_ROWS` rows; decoded data is bounded before it is
  allocated.

This module does not know the source of the values or the transport of the bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, cast

from strata_runtime.errors import StrataError

WINDOWS_TOPIC = "__strata_metrics"
WINDOW_MS = 10_000
MAX_BATCH_ROWS = 2_000

ColumnType = Literal["int", "float", "text"]
Values = Sequence[int] | Sequence[float] | Sequence[str]
Value = int | float | str

_MAGIC = b"SMQW"
_VERSION = 1
# magic, version, kind, length of the node's name, start, length of the window, rows, columns
_HEAD = struct.Struct(">4sBBHQIIH")
# type, length of the name, length of the values
_COLUMN = struct.Struct(">BBI")
_TYPE_CODES: Mapping[ColumnType, int] = {"int": 1, "float": 2, "text": 3}
_DEFAULTS: Mapping[ColumnType, Value] = {"int": 0, "float": 0.0, "text": ""}
_MAX_COLUMNS = 256
_MAX_DECODED_BYTES = 8 << 20
_MAX_TEXT_BYTES = 255


class WindowKind(IntEnum):
    """Subject of the rows of a batch."""

    QUEUE = 1
    CONSUMER_GROUP = 2
    NODE = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a kind of window.

    Attributes:
        name: with the unit last.
        type: of its values; an "int" is signed, 64 bits; a "text" has at most 255 bytes.
        description: one sentence.
    """

    name: str
    type: ColumnType
    description: str

    @property
    def default(self) -> Value:
        """The value of a row whose writer did not know this column."""
        return _DEFAULTS[self.type]


_TRAFFIC = (
    Column("messages_in", "int", "Messages stored."),
    Column("bytes_in", "int", "Bytes of the messages stored."),
    Column("messages_out", "int", "Messages delivered, with redeliveries."),
    Column("bytes_out", "int", "Bytes of the messages delivered."),
)
_PLACE = (
    Column("namespace", "text", "Namespace of the topic; empty: the default namespace."),
    Column("topic", "text", "Name of the topic."),
    Column("topic_id", "int", "Id of the topic."),
    Column("queue", "int", "Number of the queue."),
    Column("raft_group", "int", "Raft group whose leader measured it."),
)

# A storage node writes QUEUE and CONSUMER_GROUP rows of the raft groups it leads, and only those in
# which something happened in the window or which have a lag: an absent row means zeros.
COLUMNS: Mapping[WindowKind, tuple[Column, ...]] = {
    WindowKind.QUEUE: (
        *_PLACE,
        *_TRAFFIC,
        Column("min_offset", "int", "Oldest offset at the end of the window."),
        Column("end_offset", "int", "Offset of the next message at the end of the window."),
    ),
    WindowKind.CONSUMER_GROUP: (
        Column("consumer_group", "text", "Name of the consumer group."),
        *_PLACE,
        Column("messages_out", "int", "Messages delivered, with redeliveries."),
        Column("lag_messages", "int", "Messages that are not acked, at the end of the window."),
        Column("leases", "int", "Unacked messages that a consumer holds."),
        Column("lag_ms", "int", "Age of the oldest message that is not acked; 0: none."),
        Column("queueing_ms", "int", "Age of the oldest message never delivered; 0: none."),
    ),
    WindowKind.NODE: (
        Column("node_kind", "text", "Kind of the node: storage or broker."),
        Column("rack", "text", "Failure domain of the node; empty: none."),
        *_TRAFFIC,
        Column("append_p50_ms", "float", "Median time of an append."),
        Column("append_p95_ms", "float", "95th percentile of the time of an append."),
        Column("append_p99_ms", "float", "99th percentile of the time of an append."),
        Column("appends", "int", "Appends that were timed."),
        Column("sync_p50_ms", "float", "Median time of an fdatasync."),
        Column("sync_p95_ms", "float", "95th percentile of the time of an fdatasync."),
        Column("sync_p99_ms", "float", "99th percentile of the time of an fdatasync."),
        Column("syncs", "int", "Calls of fdatasync that were timed."),
        Column("cpu_cores", "float", "CPU time over wall time of the process; 1.0 is one core."),
        Column("memory_bytes", "int", "Resident memory of the process."),
        Column("loop_lag_max_ms", "float", "Longest delay of the event loop."),
        Column("disk_free_bytes", "int", "Free space on the disk of the log."),
        Column("disk_total_bytes", "int", "Size of the disk of the log."),
        Column("log_bytes", "int", "Bytes of the log on the disk."),
        Column("raft_groups", "int", "Replicas on the node."),
        Column("leaders", "int", "Raft groups that the node leads."),
        Column("leases", "int", "Messages that consumers hold, of raft groups the node leads."),
        Column("lag_messages", "int", "Messages not acked, of raft groups the node leads."),
        Column("clients", "int", "Clients of a broker."),
    ),
}


class WindowFormatError(StrataError):
    """Bytes that are no batch of windows."""


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """Windows of one kind from one node over one time.

    Attributes:
        kind: what a row is about.
        node_id: of the node that measured.
        start_ms: wall time at which the windows begin, a multiple of `length_ms`.
        length_ms: how long they are.
        columns: values by the name of the column, all of one length; every column of the kind.
    """

    kind: WindowKind
    node_id: str
    start_ms: int
    length_ms: int
    columns: Mapping[str, Values]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> Iterator[dict[str, Value]]:
        """Give each row with its values by column; for tools and tests, not for many rows."""
        names = list(self.columns)
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def batches_of(
    kind: WindowKind,
    node_id: str,
    start_ms: int,
    length_ms: int,
    rows: Iterable[Mapping[str, Value]],
    *,
    max_rows: int = MAX_BATCH_ROWS,
) -> Iterator[WindowBatch]:
    """Put rows into batches of at most `max_rows`; a column that a row lacks gets its default."""
    all_rows = list(rows)
    for first in range(0, len(all_rows), max_rows):
        part = all_rows[first : first + max_rows]
        columns = {
            column.name: cast("Values", [row.get(column.name, column.default) for row in part])
            for column in COLUMNS[kind]
        }
        yield WindowBatch(kind, node_id, start_ms, length_ms, columns)


def encode(batch: WindowBatch) -> bytes:
    """Return the body of the message that carries a batch.

    Raises:
        ValueError: it has more than `MAX_BATCH_ROWS` rows, or columns of different lengths.
    """
    rows = len(batch)
    if rows > MAX_BATCH_ROWS:
        raise ValueError(f"{rows} rows are more than {MAX_BATCH_ROWS}")
    types = {column.name: column.type for column in COLUMNS[batch.kind]}
    parts = []
    for name, values in batch.columns.items():
        if len(values) != rows:
            raise ValueError(f"column {name} has {len(values)} values of {rows}")
        column_type = types[name]
        data = _pack(column_type, values)
        parts += [_COLUMN.pack(_TYPE_CODES[column_type], len(name), len(data)), name.encode(), data]
    node = batch.node_id.encode()
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        batch.kind,
        len(node),
        batch.start_ms,
        batch.length_ms,
        rows,
        len(batch.columns),
    )
    return head + node + zlib.compress(b"".join(parts), 1)


def decode(body: bytes) -> WindowBatch:
    """Return the batch in a message's body.

    Raises:
        WindowFormatError: it is none, or one of a later version, or too large.
    """
    try:
        magic, version, kind, node_length, start_ms, length_ms, rows, count = _HEAD.unpack_from(
            body
        )
        if magic != _MAGIC or version != _VERSION:
            raise WindowFormatError(f"not a batch of windows of version {_VERSION}")
        if rows > MAX_BATCH_ROWS or count > _MAX_COLUMNS:
            raise WindowFormatError(f"{rows} rows of {count} columns are too many")
        known = COLUMNS[WindowKind(kind)]
        names_end = _HEAD.size + node_length
        node_id = body[_HEAD.size : names_end].decode()
        sent = dict(_unpack_columns(_inflate(body[names_end:]), rows, count))
    except (struct.error, zlib.error, ValueError) as error:
        raise WindowFormatError(f"damaged batch of windows: {error}") from error
    columns: dict[str, Values] = {}
    for column in known:
        column_type, values = sent.get(column.name, (column.type, ()))
        # A type that changed is a column that is not known.
        is_known = column_type == column.type and (column.name in sent)
        columns[column.name] = values if is_known else _defaults(column, rows)
    return WindowBatch(WindowKind(kind), node_id, start_ms, length_ms, columns)


def _defaults(column: Column, rows: int) -> Values:
    return cast("Values", [column.default] * rows)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data, _MAX_DECODED_BYTES)
    if not inflater.eof:
        raise WindowFormatError(f"cut off, or more than {_MAX_DECODED_BYTES} bytes of columns")
    return plain


def _unpack_columns(
    data: bytes, rows: int, count: int
) -> Iterator[tuple[str, tuple[ColumnType, Values]]]:
    names = {code: column_type for column_type, code in _TYPE_CODES.items()}
    at = 0
    for _ in range(count):
        code, name_length, length = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        name = data[at : at + name_length].decode()
        at += name_length
        column_type = names.get(code)
        # A type of a later version is skipped with its column.
        if column_type is not None:
            yield name, (column_type, _unpack(column_type, data[at : at + length], rows))
        at += length


def _pack(column_type: ColumnType, values: Values) -> bytes:
    if column_type == "int":
        return struct.pack(f">{len(values)}q", *values)
    if column_type == "float":
        return struct.pack(f">{len(values)}d", *values)
    texts = [str(value).encode()[:_MAX_TEXT_BYTES] for value in values]
    return bytes(map(len, texts)) + b"".join(texts)


def _unpack(column_type: ColumnType, data: bytes, rows: int) -> Values:
    if column_type == "int":
        return struct.unpack(f">{rows}q", data)
    if column_type == "float":
        return struct.unpack(f">{rows}d", data)
    at, texts = rows, []
    for length in data[:rows]:
        texts.append(data[at : at + length].decode(errors="replace"))
        at += length
    if len(texts) != rows or at != len(data):
        raise WindowFormatError("a column of texts is cut off")
    return texts
