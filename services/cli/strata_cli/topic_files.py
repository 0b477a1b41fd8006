"""Topics of a file, one a line, created in batches: for `strata topic create --from`.

A line is a name, or a JSON object; or the file is CSV, and its first line names the columns. Keys
and columns are `name`, `namespace`, `type`, `queues` and `retention`, and in JSON `attributes`.
Empty lines and lines that begin with # are skipped. The file is read while topics are created, so
a million lines need no memory. A batch can be sent again: topics that exist as they are wanted
stay.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import grpc

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.errors import CliError, UsageError
from strata_cli.options import milliseconds
from strata_cli.progress import WorkProgress

STANDARD_INPUT = "-"

MAX_FAILURES = 1_000
"""Topics that could not be created after which nothing more is tried."""

_BATCH_TOPICS = 500
_BATCH_BYTES = 256 * 1024
_BATCH_QUEUES = 16_384
_TRIES = 4
_PAUSE_S = 0.5
_REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_COLUMNS = ("name", "namespace", "type", "queues", "retention")
_KEYS = frozenset((*_COLUMNS, "attributes"))
_TYPES = frozenset(meta_pb2.TopicType.keys())


class TopicLine(NamedTuple):
    """A topic that a line of the file wants."""

    number: int
    topic: meta_pb2.Topic


class Created(NamedTuple):
    """Counts of the topics of a file.

    Attributes:
        created: number of new topics.
        existing: number of topics that existed as they were wanted.
        failures: `line`, `name`, `namespace` and `reason` of the topics that are not as wanted.
        stopped: number of the last line that was tried, if there were `MAX_FAILURES`; 0: all were.
    """

    created: int
    existing: int
    failures: list[dict[str, Any]]
    stopped: int


@contextmanager
def opened(place: str) -> Iterator[Iterable[str]]:
    """Yield the lines of a file, or of standard input for `-`.

    Raises:
        CliError: the file cannot be read, or it is no text; reading the lines raises it, too.
    """
    with ExitStack() as stack:
        if place == STANDARD_INPUT:
            file: TextIO = sys.stdin
        else:
            try:
                file = stack.enter_context(Path(place).open(encoding="utf-8-sig", newline=""))
            except OSError as error:
                raise CliError(f"{place}: {error.strerror}") from None
        yield _read(file, place)


def read_topics(lines: Iterable[str], template: meta_pb2.Topic) -> Iterator[TopicLine]:
    """Return the topics of a file; what a line leaves out is that of `template`.

    Raises:
        UsageError: a line that is no topic; the error has its number.
    """
    columns: list[str] | None = None
    for number, raw in enumerate(lines, 1):
        text = raw.strip()
        if not text or text.startswith("#"):
            continue
        try:
            if text.startswith("{"):
                yield TopicLine(number, _topic_of(_object_of(text), template))
            elif columns is None and "," in text:
                columns = _columns_of(text)
            elif columns is not None:
                yield TopicLine(number, _topic_of(_row_of(text, columns), template))
            else:
                yield TopicLine(number, _topic_of({"name": text}, template))
        except (UsageError, ValueError, csv.Error, RecursionError) as error:
            raise UsageError(f"line {number}: {error}") from None


def create_topics(client: AdminClient, lines: Iterable[TopicLine], shown: WorkProgress) -> Created:
    """Create topics, batch by batch.

    Raises:
        CliError: the broker refuses a whole batch or does not answer; the error says how many
            topics there are by then.
    """
    created = existing = stopped = 0
    failures: list[dict[str, Any]] = []
    for batch in _batches(lines):
        try:
            answer = _call(client, batch)
        except CliError as error:
            raise CliError(
                f"{error} (line {batch[0].number} and later; {created} topics are created, "
                f"{existing} existed; the command can be repeated)",
                error.code,
            ) from None
        created, existing = created + answer.created, existing + answer.existing
        failures += [
            {
                "line": batch[each.position].number,
                "name": each.name,
                "namespace": each.namespace,
                "reason": each.reason,
            }
            for each in answer.failures
        ]
        shown.set(created + existing + len(failures))
        if len(failures) >= MAX_FAILURES:
            stopped = batch[-1].number
            break
    return Created(created, existing, failures, stopped)


def _read(file: TextIO, place: str) -> Iterator[str]:
    try:
        yield from file
    except OSError as error:
        raise CliError(f"{place}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{place}: the file is no text in UTF-8") from None


def _call(client: AdminClient, batch: list[TopicLine]) -> admin_pb2.CreateTopicsResponse:
    request = admin_pb2.CreateTopicsRequest(topics=[line.topic for line in batch])
    for attempt in range(1, _TRIES + 1):
        try:
            return client.call(client.admin.CreateTopics, request)
        except CallFailed as failed:
            if failed.status not in _REPEATED or attempt == _TRIES:
                raise
            time.sleep(_PAUSE_S * attempt)
    raise AssertionError


def _batches(lines: Iterable[TopicLine]) -> Iterator[list[TopicLine]]:
    """Divide lines into batches that one call may have."""
    batch: list[TopicLine] = []
    size_bytes = queues = 0
    for line in lines:
        line_bytes = line.topic.ByteSize()
        if batch and (
            len(batch) == _BATCH_TOPICS
            or size_bytes + line_bytes > _BATCH_BYTES
            or queues + line.topic.queue_count > _BATCH_QUEUES
        ):
            yield batch
            batch, size_bytes, queues = [], 0, 0
        batch.append(line)
        size_bytes += line_bytes
        queues += line.topic.queue_count
    if batch:
        yield batch


def _object_of(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"this is no JSON object: {error.msg}") from None
    if not isinstance(value, dict):
        raise UsageError("this is no JSON object")
    return value


def _columns_of(text: str) -> list[str]:
    columns = [each.strip().lower() for each in next(csv.reader([text]))]
    unknown = [each for each in columns if each not in _COLUMNS]
    if unknown or "name" not in columns:
        named = f"{unknown[0]!r} is no column" if unknown else "there is no column name"
        raise UsageError(f"{named}; the first line of a CSV file names {', '.join(_COLUMNS)}")
    return columns


def _row_of(text: str, columns: list[str]) -> dict[str, Any]:
    values = [each.strip() for each in next(csv.reader([text]))]
    if len(values) != len(columns):
        raise UsageError(f"{len(values)} values, the file has {len(columns)} columns")
    return {key: value for key, value in zip(columns, values, strict=True) if value}


def _topic_of(row: dict[str, Any], template: meta_pb2.Topic) -> meta_pb2.Topic:
    topic = meta_pb2.Topic()
    topic.CopyFrom(template)
    unknown = set(row) - _KEYS
    if unknown:
        raise UsageError(f"{min(unknown)!r} is unknown; keys are {', '.join(sorted(_KEYS))}")
    if not row.get("name"):
        raise UsageError("the topic has no name")
    topic.name = _text_of(row, "name")
    if "namespace" in row:
        topic.namespace = _text_of(row, "namespace")
    if "type" in row:
        name = f"TOPIC_TYPE_{_text_of(row, 'type').upper()}"
        if name not in _TYPES:
            raise UsageError(f"{row['type']!r} is no type of a topic")
        topic.type = meta_pb2.TopicType.Value(name)
    if "queues" in row:
        text = str(row["queues"])
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 1 << 31:
            raise UsageError(f"{text} queues; a topic has at least one queue")
        topic.queue_count = int(text)
    if "retention" in row:
        topic.retention_ms = milliseconds(_text_of(row, "retention"))
    attributes = row.get("attributes", {})
    if not isinstance(attributes, dict):
        raise UsageError("attributes is an object of names and values")
    if attributes:
        topic.attributes.clear()
        topic.attributes.update({key: _text_of(attributes, key) for key in attributes})
    return topic


def _text_of(row: dict[str, Any], key: str) -> str:
    """Return a text; a number is the text that JSON has for it."""
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{key} is {json.dumps(value)}; it is a text")
    return str(value)
