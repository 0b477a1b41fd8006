"""Metric windows are read from now backwards, whole slices only, and what is missing is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli import metric_windows
from strata_cli.errors import CliError
from strata_cli.metric_windows import WindowReading
from strata_runtime.windows import WindowBatch, WindowKind, decode, encode
from tests.unit.cli.test_placement_facts import FakeClient, batch, queue_row, skewed, stored

HOUR_MS = 3_600_000


def starts(batches: list[WindowBatch]) -> list[int]:
    return sorted(each.start_ms for each in batches)


def per_minute(minutes: int) -> list[WindowBatch]:
    """Return a window of each of the last minutes, the newest last."""
    return [
        batch(WindowKind.QUEUE, "node-1", -6 * minute, [queue_row("hot", 0, 1, 1, 1)])
        for minute in reversed(range(minutes))
    ]


def test_windows_are_read_over_all_pages() -> None:
    """Each message is a whole stored message; one that is no window is told."""
    batches = skewed()
    found = stored(batches)
    other = definition_pb2.Message(body=b"something else").SerializeToString()
    now_ms = int(time.time() * 1_000)
    found.insert(3, admin_pb2.FoundMessage(message=other, store_time_ms=now_ms))
    client: Any = FakeClient(found)
    reading = WindowReading(client, 60_000)
    assert list(reading) == [decode(encode(each)) for each in batches]
    assert reading.notes() == (
        "batches of metric windows that do not count: 1 cannot be read by this version",
    )


def test_without_the_topic_there_are_no_windows() -> None:
    """One call finds out, and nothing is missing."""
    client: Any = FakeClient([])
    client.has_windows = False
    reading = WindowReading(client, 24 * HOUR_MS)
    assert (list(reading), reading.notes()) == ([], ())


def test_windows_that_cannot_be_read_are_no_empty_list() -> None:
    """Only a topic that does not exist has no windows; any other failure is shown."""
    client: Any = FakeClient([])
    client.has_windows, client.refusal = False, "unreachable"
    with pytest.raises(CliError):
        list(WindowReading(client, 60_000))


def test_more_pages_than_ever_are_read_to_the_end() -> None:
    """No page is left unread without a word."""
    batches = per_minute(150)
    client: Any = FakeClient(stored(batches), page_size=1)
    reading = WindowReading(client, 3 * HOUR_MS)
    assert starts(list(reading)) == starts(batches)
    assert client.pages > 150
    assert reading.notes() == ()


def test_the_newest_windows_are_read_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slice that does not fit is left out whole, and the time that was read is told."""
    monkeypatch.setattr(metric_windows, "MAX_PAGES", 35)
    batches = per_minute(150)
    reading = WindowReading(FakeClient(stored(batches), page_size=1), 3 * HOUR_MS)  # type: ignore[arg-type]
    read = starts(list(reading))
    assert read == starts(batches)[-len(read) :]
    assert 28 <= len(read) <= 31, "three slices of ten minutes"
    assert reading.now_ms - reading.begin_ms == 1_800_000
    [note] = reading.notes()
    assert note.startswith("metric windows were read of the last 30 min only, of 180 min that were")


def test_a_slice_that_is_too_much_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what to do."""
    monkeypatch.setattr(metric_windows, "MAX_ROWS", 40)
    client: Any = FakeClient(stored(per_minute(9)), page_size=1)
    with pytest.raises(CliError, match=r"the last 10 min have more .* give a shorter --history"):
        list(WindowReading(client, HOUR_MS))


def test_a_batch_that_came_twice_counts_once() -> None:
    """Two brokers published it: the message ids are the same, the bodies may differ."""
    batches = per_minute(3)
    client: Any = FakeClient(stored(batches + batches))
    assert starts(list(WindowReading(client, HOUR_MS))) == starts(batches)
    named = stored(batches)
    for number, found in enumerate(named):
        message = definition_pb2.Message.FromString(found.message)
        message.system_properties.message_id = "01A"
        message.body += bytes(number)
        found.message = message.SerializeToString()
    client = FakeClient(named)
    assert len(list(WindowReading(client, HOUR_MS))) == 1


def test_queues_and_nodes_are_asked_for_and_no_consumer_groups() -> None:
    """A third of all batches is of consumer groups, whose loads are those of queues."""
    tags = []

    class Noting(FakeClient):
        def FindMessages(
            self, request: admin_pb2.FindMessagesRequest
        ) -> admin_pb2.FindMessagesResponse:
            tags.append(request.tag)
            return super().FindMessages(request)

    client: Any = Noting([])
    list(WindowReading(client, 60_000))
    assert tags == ["queue||node"]
