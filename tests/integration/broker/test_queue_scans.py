"""Scans of whole topics, as the data source for Spark makes them, against a running node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan, ends_of
from strata_placement.source.runs import DataLossError, SourceError
from strata_placement.source.sending import requests_of
from tests.integration.cli.conftest import Node

MESSAGES = 3_000


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceOptions]:
    """A node with a topic of MESSAGES messages in three queues."""
    folder: Path = tmp_path_factory.mktemp("scans")
    node = Node(folder / "data", environment={})
    node.json("topic", "create", "scanned", "--queues", "3")
    made = SourceOptions((node.endpoint,), "scanned", batch_messages=500, timeout_ms=5_000)
    rows = ({"body": str(number), "tag": f"t{number % 3}"} for number in range(MESSAGES))
    with BrokerClient(made) as client:
        for request in requests_of(rows, made, "test"):
            client.send(request)
    yield made
    node.stop()


def test_all_messages_are_scanned_once(options: SourceOptions) -> None:
    """Spans cover the topic, and their scans give every offset in order."""
    with BrokerClient(options) as client:
        spans = client.spans()
        for span in spans:
            found = [offset for run in client.scan(span) for offset in run.offsets]
            assert found == list(range(span.first, span.end))
    assert sum(span.end - span.first for span in spans) == MESSAGES
    assert [span.queue for span in spans] == [0, 1, 2]


def test_a_part_of_a_queue_ends_where_it_should(options: SourceOptions) -> None:
    """Neither an answer's size nor what lies behind the part changes what is given."""
    with BrokerClient(options) as client:
        found = [offset for run in client.scan(QueueSpan(0, 7, 19)) for offset in run.offsets]
        assert found == list(range(7, 19))


def test_a_tag_is_filtered_where_the_messages_are(options: SourceOptions) -> None:
    """Only messages with the tag come, all of them, and the scan reaches the end."""
    with BrokerClient(options) as client:
        runs = [run for span in client.spans() for run in client.scan(span, "t1")]
    found = [message for run in runs for message in run.messages]
    assert len(found) == MESSAGES // 3


def test_a_time_limits_the_spans(options: SourceOptions) -> None:
    """Nothing was stored after now, and nothing before an hour ago."""
    now_ms = int(time.time() * 1_000) + 60_000
    with BrokerClient(options) as client:
        ends = ends_of(client.spans())
        assert all(span.first == span.end for span in client.spans(begin_ms=now_ms))
        early = client.spans(end_ms=now_ms - 3_600_000)
        assert all(span.first == span.end == 0 for span in early)
        assert ends_of(client.spans(begin_ms=1, end_ms=now_ms)) == ends


def test_a_repeated_send_stores_nothing_more(options: SourceOptions) -> None:
    """The ids of a task that is run again are known already."""
    with BrokerClient(options) as client:
        before = client.spans()
        for request in requests_of(({"body": str(n)} for n in range(500)), options, "test"):
            client.send(request)
        assert client.spans() == before


def test_errors_are_told(options: SourceOptions) -> None:
    """A topic that is not there, and offsets that are not reached, end with an error."""
    absent = SourceOptions(options.endpoints, "absent")
    with BrokerClient(absent) as client, pytest.raises(SourceError, match=r"NOT_FOUND: .*absent"):
        client.spans()
    short = SourceOptions(options.endpoints, "scanned", timeout_ms=200)
    with BrokerClient(short) as client, pytest.raises(SourceError, match="does not go on"):
        list(client.scan(QueueSpan(0, MESSAGES, MESSAGES + 1)))
    assert issubclass(DataLossError, SourceError)


def test_a_broker_that_is_gone_is_left_for_another_one(options: SourceOptions) -> None:
    """Each task has a broker of its own to begin with, and the driver, too."""
    either = replace(options, endpoints=("127.0.0.1:1", *options.endpoints))
    for number in (0, 1):
        with BrokerClient(either, number) as client:
            assert ends_of(client.spans()) == ends_of(client.spans(begin_ms=1))
            offsets = [offset for run in client.scan(QueueSpan(0, 0, 5)) for offset in run.offsets]
            assert offsets == list(range(5))


def test_a_topic_that_was_made_again_is_told(options: SourceOptions) -> None:
    """A query that has read further than its queues reach would wait, and then pass messages."""
    short = replace(options, timeout_ms=300)
    with BrokerClient(short) as client:
        ends = ends_of(client.spans())
        assert client.ends(ends) == ends
        with pytest.raises(DataLossError, match=r"queue 1 .* was the topic made again"):
            client.ends({**ends, "1": ends["1"] + 1})
    with BrokerClient(replace(short, fail_on_data_loss=False)) as client:
        assert client.ends({**ends, "1": ends["1"] + 1}) == ends
