"""Heartbeats and locks of remoting clients: hostile bodies are refused with a reason."""

from __future__ import annotations

import json

import pytest

from strata_broker.remoting.heartbeats import (
    RemotingSubscription,
    read_balance,
    read_heartbeat,
    read_locks,
)
from strata_broker.remoting.json_bodies import read_object
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
            "groupName has 256 characters; 255 are allowed",
        ),
        (
            b'{"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": '
            b'[{"topic": "%s"}]}]}' % (b"t" * 256),
            "topic has 256 characters; 255 are allowed",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes, reason: str) -> None:
    """Before it is parsed if it is too large: parsing takes the event loop."""
    with pytest.raises(RemotingError) as refused:
        read_heartbeat(body, MOST)
    assert str(refused.value).startswith(reason)


HALF = "a text in the body is no UTF-8: half of a surrogate pair"


@pytest.mark.parametrize(
    "body",
    [
        rb'{"clientID": "c\ud800"}',
        rb'{"clientID": "c", "producerDataSet": [{"groupName": "\udc00\ud800"}]}',
        rb'{"clientID": "c", "more": [{"\uDFFF": 1}]}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_in_every_body(body: bytes) -> None:
    """No answer and no row can hold it: a client that is shown with it hides all the others."""
    for read in (read_heartbeat, read_locks, read_balance, read_object):
        with pytest.raises(RemotingError) as refused:
            read(body, MOST)
        assert str(refused.value) == HALF


def test_half_of_a_surrogate_pair_is_refused_in_bytes_too() -> None:
    """Python's parser of JSON takes bytes for it that are no UTF-8."""
    with pytest.raises(RemotingError, match="the body is no JSON: 'utf-8' codec can't decode"):
        read_object(b'{"clientID": "\xed\xa0\x80"}', MOST)


def test_whole_pairs_and_escaped_backslashes_are_read() -> None:
    """They are texts like any other."""
    body = rb'{"clientID": "\ud83d\ude00 \\ud800 \u00e9"}'
    assert read_heartbeat(body, MOST).client_id == "\N{GRINNING FACE} \\ud800 é"


def test_locks_are_bounded_likewise() -> None:
    """A request for locks has the same kind of body."""
    with pytest.raises(RemotingError, match="max_json_bytes"):
        read_locks(b" " * (MOST + 1), MOST)
    with pytest.raises(RemotingError, match="a queue has no number"):
        read_locks(b'{"mqSet": [{"queueId": true}]}', MOST)
    name = b"b" * 256
    with pytest.raises(RemotingError, match="brokerName has 256 characters; 255 are allowed"):
        read_locks(b'{"mqSet": [{"queueId": 1, "topic": "t", "brokerName": "%s"}]}' % name, MOST)
