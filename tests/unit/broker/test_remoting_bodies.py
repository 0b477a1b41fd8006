"""Heartbeats and locks of remoting clients: hostile bodies are refused with a reason."""

from __future__ import annotations

import json

import pytest

from strata_broker.remoting.heartbeats import RemotingSubscription, read_heartbeat, read_locks
from strata_remoting import RemotingError

MOST = 4_096


def test_a_heartbeat_is_read() -> None:
    """Groups, and for each topic what a consumer wants of it."""
    subscription = {"topic": "orders", "subString": "a || b", "expressionType": "TAG"}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription]}
    data = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}
    read = read_heartbeat(json.dumps(data).encode(), MOST)
    assert (read.client_id, read.producer_groups) == ("c", frozenset(("p",)))
    assert read.consumers == {"g": {"orders": RemotingSubscription("a || b")}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * (MOST + 1), "the body has 4097 bytes; 4096 are allowed (remoting.max_json_bytes)"),
        (b"[" * MOST, "the body is no JSON"),
        (b"\xff", "the body is no JSON"),
        (b"[]", "the body is no JSON object"),
        (b'{"clientID": 7}', "clientID is missing"),
        (
            b'{"clientID": "c", "consumerDataSet": {"a": 1}}',
            "consumerDataSet is no list of objects",
        ),
        (
            b'{"clientID": "c", "producerDataSet": [{"groupName": "%s"}]}' % (b"p" * 256),
            "the name of a producer group has 256 characters; 255 are allowed",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes, reason: str) -> None:
    """Before it is parsed if it is too large: parsing takes the event loop."""
    with pytest.raises(RemotingError) as refused:
        read_heartbeat(body, MOST)
    assert str(refused.value).startswith(reason)


def test_locks_are_bounded_likewise() -> None:
    """A request for locks has the same kind of body."""
    with pytest.raises(RemotingError, match="max_json_bytes"):
        read_locks(b" " * (MOST + 1), MOST)
    with pytest.raises(RemotingError, match="a queue has no number"):
        read_locks(b'{"mqSet": [{"queueId": true}]}', MOST)
