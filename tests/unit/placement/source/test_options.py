"""Options of the data source, and what a writer makes of rows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_placement.source.options import OptionError, SourceOptions
from strata_placement.source.runs import SourceError
from strata_placement.source.sending import requests_of

GIVEN = {"endpoint": "a:1, b:2", "topic": "t"}


def test_options_are_read_as_spark_gives_them() -> None:
    """Names in any case, lists by comma, the topic as the path of `load`, too."""
    options = SourceOptions.parse(
        {
            "Endpoint": "a:1, b:2",
            "path": "t",
            "queues": "0,3",
            "beginMs": "5",
            "failOnDataLoss": "False",
            "checkpointLocation": "/somewhere",
        }
    )
    assert options.endpoints == ("a:1", "b:2")
    assert (options.topic, options.queues, options.begin_ms) == ("t", frozenset({0, 3}), 5)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "t"}, "endpoint"),
        ({"endpoint": "a:1"}, "topic"),
        (GIVEN | {"tagg": "x"}, "unknown option 'tagg'"),
        (GIVEN | {"beginMs": "-1"}, "beginms: -1 is negative"),
        (GIVEN | {"batchMessages": "0"}, "batchmessages: 0 is too small"),
        (GIVEN | {"starting": "now"}, "neither earliest nor latest"),
    ],
)
def test_a_bad_option_is_named(given: Mapping[str, str], complaint: str) -> None:
    """A misspelt key is an error, not ignored."""
    with pytest.raises(OptionError, match=complaint):
        SourceOptions.parse(given)


def test_rows_become_requests_of_bounded_size() -> None:
    """Neither more messages nor more bytes than allowed in one; a large one goes alone."""
    options = SourceOptions(("a:1",), "t", batch_messages=3, batch_bytes=10)
    bodies = ["1", "2", "3", "4", "a" * 9, "b" * 20, "5"]
    requests = list(requests_of(({"body": body} for body in bodies), options, "job"))
    sizes = [[len(message.body) for message in request.messages] for request in requests]
    assert sizes == [[1, 1, 1], [1, 9], [20], [1]]


def test_a_repeated_task_repeats_its_ids() -> None:
    """The same rows of the same origin have the same ids; any other origin's differ."""
    options = SourceOptions(("a:1",), "t")
    rows = [{"body": "x"}, {"body": "x"}]

    def ids(origin: str) -> list[str]:
        (request,) = requests_of(rows, options, origin)
        return [message.system_properties.message_id for message in request.messages]

    assert ids("query/1/0") == ids("query/1/0")
    assert len({*ids("query/1/0"), *ids("query/1/1"), *ids("query/2/0")}) == 6
    assert all(len(one) == 34 and one.startswith("01") for one in ids("query/1/0"))


def test_a_row_says_all_that_a_message_has() -> None:
    """Tag, keys, properties and message group arrive; a message group makes it FIFO."""
    row = {
        "body": b"\x00\xff",
        "tag": "a",
        "keys": ["k1", "k2"],
        "properties": {"p": "v"},
        "message_group": "g",
    }
    (request,) = requests_of([row, {"body": "text"}], SourceOptions(("a:1",), "t", "ns"), "job")
    message, plain = request.messages
    properties = message.system_properties
    assert (message.topic.name, message.topic.resource_namespace) == ("t", "ns")
    assert (message.body, dict(message.user_properties)) == (b"\x00\xff", {"p": "v"})
    assert (properties.tag, list(properties.keys), properties.message_group) == (
        "a",
        ["k1", "k2"],
        "g",
    )
    assert properties.message_type == definition_pb2.FIFO
    assert (plain.body, plain.system_properties.message_type) == (b"text", definition_pb2.NORMAL)
    assert not plain.system_properties.HasField("tag")


def test_a_row_without_body_is_refused() -> None:
    """A row that cannot be a message is not sent as an empty one."""
    with pytest.raises(SourceError, match="row 0 has no body"):
        list(requests_of([{"tag": "a"}], SourceOptions(("a:1",), "t"), "job"))
