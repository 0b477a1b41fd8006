"""Many messages in and out: what is on its way when an input ends wrongly, where a tail begins."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli import messaging, sending
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.options import Common
from strata_cli.tailing import TailRequest, read

MESSAGE = messaging.Outgoing(
    topic=definition_pb2.Resource(name="t"),
    body=b"",
    tag="",
    keys=[],
    message_group="",
    properties={},
)


class SlowSend:
    """A send that is under way until its receipt is asked for."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def done(self) -> bool:
        return False


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies of the messages whose receipt was waited for; a body `bad` is refused."""
    bodies: list[bytes] = []

    def receipt_of(_: object, call: SlowSend) -> None:
        if call.body == b"bad":
            raise CliError("refused", "refused")
        bodies.append(call.body)

    monkeypatch.setattr(messaging, "send_soon", lambda _, outgoing: SlowSend(outgoing.body))
    monkeypatch.setattr(messaging, "receipt_of", receipt_of)
    return bodies


def sent(text: bytes) -> dict[str, Any]:
    client: Any = None
    return sending.send_all(client, sending.records(MESSAGE, io.BytesIO(text)))


def test_a_wrong_line_loses_none_of_those_before(stored: list[bytes]) -> None:
    """They were read and begun: the command waits for them, and tells how many are stored."""
    with pytest.raises(
        CliError, match=r"line 3 is not JSON.*\(after 2 messages were sent\)"
    ) as bad:
        sent(b'{"body": "1"}\n{"body": "2"}\n{"body"\n{"body": "4"}\n')
    assert bad.value.code == "usage"
    assert stored == [b"1", b"2"]


def test_a_refused_message_ends_the_command_and_counts_what_is_stored(stored: list[bytes]) -> None:
    """Sends that were under way beside it may be stored: they are counted, too."""
    with pytest.raises(CliError, match=r"refused \(after 2 messages were sent\)") as refused:
        sent(b'{"body": "1"}\n{"body": "bad"}\n{"body": "3"}\n')
    assert refused.value.code == "refused"
    assert stored == [b"1", b"3"]


def test_an_interrupt_waits_for_what_is_under_way(stored: list[bytes]) -> None:
    """Lines of a pipe cannot be read again."""

    def interrupted() -> Iterator[messaging.Outgoing]:
        yield from sending.lines(MESSAGE, io.BytesIO(b"1\n2\n"))
        raise KeyboardInterrupt

    client: Any = None
    with pytest.raises(KeyboardInterrupt):
        sending.send_all(client, interrupted())
    assert stored == [b"1", b"2"]


class Topic:
    """A topic of two queues; its calls as a client's stub has them.

    Attributes:
        ends: of its queues, look by look; the last one stays.
        scanned: (queue, first offset, end) of each scan.
    """

    def __init__(self, *ends: tuple[int, int]) -> None:
        self.ends = itertools.chain(ends, itertools.repeat(ends[-1]))
        self.scanned: list[tuple[int, int, int]] = []

    def GetTopic(self, _: object) -> admin_pb2.GetTopicResponse:
        queues = enumerate(next(self.ends))
        return admin_pb2.GetTopicResponse(
            queues=[admin_pb2.QueueStatus(queue=queue, next_offset=end) for queue, end in queues]
        )

    def ScanQueue(self, request: admin_pb2.ScanQueueRequest) -> admin_pb2.ScanQueueResponse:
        self.scanned.append((request.queue, request.offset, request.end_offset))
        body = f"{request.queue}:{request.offset}".encode()
        found = admin_pb2.FoundMessage(
            queue=request.queue,
            offset=request.offset,
            message=definition_pb2.Message(body=body).SerializeToString(),
        )
        return admin_pb2.ScanQueueResponse(messages=[found], resume_offset=request.offset + 1)


def followed(topic: Topic, monkeypatch: pytest.MonkeyPatch, begin: str, count: int) -> list[str]:
    """Return the first messages of a tail that follows a topic."""
    client = AdminClient(Common(endpoint="127.0.0.1:1"))
    monkeypatch.setattr(client, "admin", topic)
    monkeypatch.setattr(client, "call", lambda method, request: method(request))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    tail = TailRequest(topic="t", namespace="", begin=begin, follows=True, count=count)
    try:
        return [view["body"] for view in read(client, tail)]
    finally:
        client.close()


def test_a_tail_from_an_offset_waits_where_a_queue_is_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its messages before that offset were not asked for."""
    topic = Topic((2, 6), (2, 6), (2, 7), (5, 7), (6, 7))
    assert followed(topic, monkeypatch, "5", 3) == ["1:5", "1:6", "0:5"]


def test_a_tail_begins_anew_with_a_topic_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queues end before where they ended."""
    topic = Topic((2, 6), (2, 6), (0, 1), (0, 1))
    assert followed(topic, monkeypatch, "latest", 1) == ["1:0"]
