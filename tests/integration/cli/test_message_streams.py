"""Many messages by one command: from standard input and files, followed, without a group."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.cli.conftest import STRATA

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node

BINARY = bytes(range(256))


def tail(node: Node, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """Return what `message tail` prints."""
    done = node.inside("message", "tail", topic, "-o", "json", *arguments)
    assert (done.code, done.err) == (0, b"")
    return [json.loads(line) for line in done.out.splitlines()]


def test_lines_become_messages_and_can_be_read_again(node: Node) -> None:
    """Each line is a message with its own key; reading consumes nothing."""
    node.json("topic", "create", "lines")
    sent = node.json(
        *("message", "send", "lines", "--lines", "--key", "k-{n}", "--property", "text={line}"),
        *("--tag", "fixed"),
        stdin=b'{"n":1}\n\ntwo\nthree',
    )
    assert (sent["sent"], sent["bytes"]) == (3, len(b'{"n":1}twothree'))
    got = sorted(tail(node, "lines", "--from", "earliest"), key=lambda each: each["keys"])
    assert [(each["keys"], each["body"]) for each in got] == [
        (["k-1"], '{"n":1}'),
        (["k-2"], "two"),
        (["k-3"], "three"),
    ]
    assert got[2]["properties"] == {"text": "three"}
    assert {each["tag"] for each in got} == {"fixed"}
    received = node.json("message", "receive", "lines", "--group", "late", "--count", "5")
    assert len(received["messages"]) == 3


def test_bytes_stay_as_they_are(node: Node, tmp_path: Path) -> None:
    """A file of any bytes is one message; a template gives the same bytes back."""
    node.json("topic", "create", "binary")
    file = tmp_path / "any"
    file.write_bytes(BINARY)
    node.json("message", "send", "binary", "--file", str(file))
    node.json("message", "send", "binary", "--body", "-", stdin=BINARY)
    for _ in range(2):
        assert node.inside("message", "tail", "binary", "--format", "{body}").out == BINARY * 2
    shown = node.inside("message", "tail", "binary").out.decode()
    assert shown.count("<256 bytes that are no UTF-8 text>") == 2


def test_what_was_printed_can_be_sent(node: Node) -> None:
    """A topic is copied by two commands; options win over what the records say."""
    for topic in ("from", "into"):
        node.json("topic", "create", topic)
    for number in range(3):
        node.json(
            *("message", "send", "from", "--body", f"b{number}", "--key", f"k{number}"),
            *("--tag", "t", "--property", f"p={number}"),
        )
    printed = node.inside("message", "tail", "from", "-o", "json").out
    copy = ("message", "send", "into", "--records", "--tag", "new")
    assert node.json(*copy, stdin=printed)["sent"] == 3
    rows = [
        (each["body"], each["keys"], each["properties"], each["tag"]) for each in tail(node, "into")
    ]
    assert sorted(rows) == [(f"b{n}", [f"k{n}"], {"p": str(n)}, "new") for n in range(3)]
    torn = node.inside(*copy, stdin=b'{"body": "x"}\n{}\n')
    assert torn.code == 2
    assert b"line 2: it has neither body nor body_base64" in torn.err


def test_where_reading_begins_and_ends(node: Node) -> None:
    """The newest, an offset of a queue, a time, a count, a tag."""
    node.json("topic", "create", "places", "--queues", "2")
    done = node.json("message", "send", "places", "--body", "m{n} {other}", "--count", "20")
    assert done["sent"] == 20
    everything = tail(node, "places", "--from", "earliest")
    assert sorted(each["body"] for each in everything) == sorted(
        f"m{n} {{other}}" for n in range(1, 21)
    )
    times = [each["store_time_ms"] for each in everything]
    assert times == sorted(times)
    assert len(tail(node, "places")) == 10
    assert len(tail(node, "places", "--count", "4")) == 4
    assert len(tail(node, "places", "--from", "earliest", "--count", "4")) == 4
    of_queue = [each for each in everything if each["queue"] == 1]
    from_offset = tail(node, "places", "--queue", "1", "--from", "3")
    assert [each["offset"] for each in from_offset] == [each["offset"] for each in of_queue[3:]]
    assert tail(node, "places", "--from", str(times[-1] + 1)) == []
    assert len(tail(node, "places", "--from", str(times[0]))) == 20
    assert tail(node, "places", "--from", "latest") == []
    assert tail(node, "places", "--from", "earliest", "--tag", "none") == []
    for arguments, code in (
        (("nowhere",), 3),
        (("places", "--queue", "7"), 3),
        (("places", "--from", "soon"), 2),
        (("places", "--format", "{colour}"), 2),
        (("places", "--format", "{body}", "-o", "json"), 2),
    ):
        failed = node.inside("message", "tail", *arguments)
        assert (failed.code, failed.err.count(b"\n")) == (code, 1), failed.err


def test_a_topic_is_followed(node: Node) -> None:
    """Messages appear as they are sent, until the count is reached."""
    node.json("topic", "create", "followed")
    node.json("message", "send", "followed", "--body", "before")
    following = subprocess.Popen(
        [*STRATA, "message", "tail", "followed", "-f", "--count", "3", "-o", "json"],
        stdout=subprocess.PIPE,
        env=os.environ | {"STRATA_ENDPOINT": node.endpoint},
    )
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["body"] == "before"
    for body in ("one", "two"):
        node.json("message", "send", "followed", "--body", body)
        assert json.loads(following.stdout.readline())["body"] == body
    assert following.wait(timeout=30) == 0
    following.stdout.close()


def test_a_consumer_follows_and_acks(node: Node) -> None:
    """Each message is printed by the template and acked; then the group has no lag."""
    node.json("topic", "create", "consumed")
    receiving = subprocess.Popen(
        [
            *(*STRATA, "message", "receive", "consumed", "--group", "follower", "--follow"),
            *("--ack", "--count", "2", "--format", r"{body}|{keys}\n"),
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"STRATA_ENDPOINT": node.endpoint},
    )
    assert receiving.stdout is not None
    for number in range(2):
        node.json("message", "send", "consumed", "--body", f"b{number}", "--key", "k")
        assert receiving.stdout.readline() == f"b{number}|k\n".encode()
    assert receiving.wait(timeout=30) == 0
    receiving.stdout.close()
    deadline_s = time.monotonic() + 20
    while node.json("group", "show", "follower")["lag"] and time.monotonic() < deadline_s:
        continue
    assert node.json("group", "show", "follower")["lag"] == 0


def test_wrong_lines_of_command(node: Node) -> None:
    """One way to send at a time."""
    for arguments, reason in (
        (("--lines", "--count", "2"), "at most one of --lines, --records and --count"),
        (("--lines", "--body", "x"), "not from --body"),
        (("--count", "0", "--body", "x"), "at least one message"),
    ):
        done = node.inside("message", "send", "lines", *arguments)
        assert done.code == 2
        assert reason in done.err.decode()


def test_cursors_are_moved_exactly(node: Node) -> None:
    """An offset of one queue, all that accumulated, and the places of another group."""
    node.json("topic", "create", "moved", "--queues", "2")
    node.json("message", "send", "moved", "--body", "m{n}", "--count", "40")
    for name in ("reader", "copy"):
        node.json("group", "create", name)
    node.json("message", "receive", "moved", "--group", "reader", "--count", "1", "--ack")
    ends = {each["queue"]: each["next_offset"] for each in group_queues(node, "reader")}
    reset = ("group", "reset", "reader", "--topic", "moved")
    dry = node.json(*reset, "--offset", "5", "--queue", "1", "--dry-run")["queues"]
    assert [(each["queue"], each["cursor_after"]) for each in dry] == [(1, 5)]
    done = node.json(*reset, "--offset", "5", "--queue", "1")
    assert (done["to"], [each["cursor"] for each in done["queues"]]) == ("5", [5])
    node.json(*reset, "--offset", "1000000", "--queue", "0")
    assert cursors(node, "reader") == {0: ends[0], 1: 5}
    planned = node.json("group", "clone", "reader", "copy", "--dry-run")
    assert (planned["dry_run"], cursors(node, "copy")) == (True, {})
    node.json("group", "clone", "reader", "copy", "--topic", "moved")
    assert cursors(node, "copy") == {0: ends[0], 1: 5}
    node.json("group", "skip", "copy", "--topic", "moved", "--queue", "1")
    assert cursors(node, "copy") == ends
    assert node.json("group", "lag", "copy")["groups"][0]["lag"] == 0
    for arguments, reason, code in (
        (("reader",), "give --to or --offset", 2),
        (("reader", "--offset", "1"), "need --topic", 2),
        (("reader", "--topic", "moved", "--offset", "1", "--queue", "9"), "has 2 queues", 3),
    ):
        failed = node.inside("group", "reset", *arguments)
        assert (failed.code, reason in failed.err.decode()) == (code, True), failed.err
    assert node.inside("group", "clone", "reader", "nobody").code == 3


def group_queues(node: Node, name: str) -> list[dict[str, Any]]:
    """Return the queues of a consumer group that are of the topic of this test.

    A client that runs in the process of the tests has consumed other topics, too.
    """
    return [each for each in node.json("group", "show", name)["queues"] if each["topic"] == "moved"]


def cursors(node: Node, name: str) -> dict[int, int]:
    """Return queue -> cursor of a consumer group on the topic of this test."""
    return {each["queue"]: each["cursor"] for each in group_queues(node, name)}


def test_a_small_load_is_measured(node: Node) -> None:
    """As many messages as were asked for, with latencies; all of them are received again."""
    node.json("topic", "create", "loaded")
    sent = node.json("bench", "send", "loaded", "--count", "200", "--size", "100")
    assert (sent["messages"], sent["failed"]) == (200, 0)
    assert 0 < sent["p50_ms"] <= sent["p99_ms"] <= sent["max_ms"]
    got = node.json("bench", "receive", "loaded", "--count", "200")
    # One more message was sent before the load, to find out whether anything works.
    assert (got["messages"], got["failed"]) == (200, 0)
    assert got["p50_ms"] > 0
    paced = node.json("bench", "send", "loaded", "--rate", "100", "--duration", "500ms")
    assert paced["messages"] <= 51
    assert node.inside("bench", "send", "nowhere").code == 3
    assert node.inside("bench", "send", "loaded", "--size", "0").code == 2
