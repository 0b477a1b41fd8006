"""Texts for people: times, durations, sizes, lists; nothing in them moves a terminal's cursor."""

from __future__ import annotations

import json

import pytest

from strata_cli.client import plain, with_port
from strata_cli.errors import CliError
from strata_cli.options import Common
from strata_cli.output import show
from strata_cli.readable import readable, topic_name


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("created_at_ms", 1795390157257, "2026-11-22T23:29:17.257Z"),
        ("last_store_time_ms", 0, "-"),
        ("retention_ms", 259_200_000, "3d"),
        ("retention_ms", 0, "0ms"),
        ("initial_ms", 1_500, "1500ms"),
        ("metadata_age_ms", 61_500, "61.5s"),
        ("payload_bytes", 1_536, "1.5 KiB"),
        ("payload_bytes", 3, "3 B"),
        ("members", [{"client_id": "a", "last_heartbeat_ms": 0}], "client_id=a, last_heartbeat=-"),
        ("endpoints", ["a:1", "b:2"], "a:1, b:2"),
        ("attributes", {}, "-"),
        ("fifo", True, "yes"),
        ("body", "two\nlines \x1b[2J\x9b1m\u202e", "two\\nlines \\x1b[2J\\x9b1m\\u202e"),
        ("body", "Grüße, 世界", "Grüße, 世界"),
    ],
)
def test_values(key: str, value: object, text: str) -> None:
    """The key says what a number is; text that would act on a terminal is escaped."""
    assert readable(key, value) == text


def test_topics_of_the_default_namespace_have_no_prefix() -> None:
    """The store writes NAMESPACE%NAME; a dead-letter topic keeps its own prefix."""
    names = ["%t2", "%%DLQ%g", "shop%t2"]
    assert [topic_name(each) for each in names] == ["t2", "%DLQ%g", "shop%t2"]


def test_a_body_neither_breaks_the_table_nor_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One row stays one line; JSON keeps the body and its keys as they are."""
    result = {"messages": [{"body": "a\nb\x1b]0;title\x07", "store_time_ms": 0}], "next_page": ""}
    show(result, Common(), rows="messages")
    text = capsys.readouterr().out
    show(result, Common(output="json"), rows="messages")

    assert text.split("\n")[1].split() == ["a\\nb\\x1b]0;title\\x07", "-"]
    assert text.split("\n")[0].split() == ["body", "store", "time"]
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.parametrize(("next_page", "shown"), [("", False), ("b3JkZXJz", True)])
def test_the_last_page_names_no_next_one(
    capsys: pytest.CaptureFixture[str], next_page: str, *, shown: bool
) -> None:
    """People see a token where there is one; JSON has the key always."""
    result = {"topics": [{"name": "orders"}], "next_page": next_page}
    show(result, Common(), rows="topics")
    text = capsys.readouterr().out
    show(result, Common(output="json"), rows="topics")

    assert ("next" in text, next_page in text) == (shown, True)
    assert "orders" in text
    assert json.loads(capsys.readouterr().out)["next_page"] == next_page


LONG_ROW = {
    "topic": "orders-" + "x" * 90,
    "members": [{"client_id": f"client-{number}"} for number in range(12)],
    "lag": 1_234_567,
    "state": "leaderless",
}


@pytest.mark.parametrize(("columns", "width"), [("", 80), ("60", 60), ("0", 80)])
def test_a_table_fits_the_terminal_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    """Long values go on in their column's next lines; short ones stay whole."""
    monkeypatch.setenv("COLUMNS", columns)

    show({"groups": [LONG_ROW]}, Common(), rows="groups")

    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= width
    assert {"1234567", "leaderless"} <= set(lines[1].split())
    assert "".join(line.split()[0] for line in lines[1:] if line[0] != " ") == LONG_ROW["topic"]
    begin, end = lines[0].index("members"), lines[0].index("lag") + len("lag") - len("1234567")
    members = "".join(line[begin:end] for line in lines[1:])
    told = readable("members", LONG_ROW["members"])
    assert members.replace(" ", "") == told.replace(" ", "")


def test_a_wide_table_has_one_line_per_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has one line at any width of the terminal, also one longer than any terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    rows = [LONG_ROW, {**LONG_ROW, "topic": "y" * 5_000}]

    show({"groups": rows}, Common(output="wide"), rows="groups")

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [row["topic"] for row in rows]
    assert lines[2].split()[-2:] == ["1234567", "leaderless"]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("localhost", "localhost:8081"),
        ("[::1]", "[::1]:8081"),
        ("[::1]:9", "[::1]:9"),
        ("host:9", "host:9"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_an_endpoint_without_a_port_has_the_default_one(given: str, used: str) -> None:
    """Not the one that gRPC would take."""
    assert with_port(given) == used


@pytest.mark.parametrize("given", [":9", "host:", "host:99999", "::1", "host:x"])
def test_what_is_no_endpoint(given: str) -> None:
    """It is told before anything is called."""
    with pytest.raises(CliError, match="write HOST:PORT"):
        with_port(given)


def test_a_missing_topic_is_told_plainly() -> None:
    """People need not read what RocketMQ's clients must read."""
    told = "CODE: 17  DESC: No topic route info in name server for the topic: nope"

    assert plain(told) == plain(f"TOPIC_NOT_FOUND: {told}") == "topic nope does not exist"
    assert plain("something else") == "something else"
