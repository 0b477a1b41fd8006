"""`strata topic create --from`, and lists of topics in pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import topic_files
from strata_cli.errors import UsageError
from strata_cli.main import run

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

TEMPLATE = meta_pb2.Topic(
    namespace="shop", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=8, retention_ms=1_000
)


def read(lines: Iterable[str]) -> list[tuple[int, meta_pb2.Topic]]:
    return [(each.number, each.topic) for each in topic_files.read_topics(lines, TEMPLATE)]


def all_created(request: admin_pb2.CreateTopicsRequest) -> admin_pb2.CreateTopicsResponse:
    return admin_pb2.CreateTopicsResponse(created=len(request.topics))


def test_three_kinds_of_files() -> None:
    """Names, objects and CSV; what a line leaves out comes from the command line."""
    plain = read(["# my topics\n", "\n", "orders\n", '{"name": "events", "queues": 3}\n'])
    assert [(number, row.name, row.queue_count) for number, row in plain] == [
        (3, "orders", 8),
        (4, "events", 3),
    ]
    assert plain[0][1] == meta_pb2.Topic(
        name="orders",
        namespace="shop",
        type=meta_pb2.TOPIC_TYPE_NORMAL,
        queue_count=8,
        retention_ms=1_000,
    )
    text = '"name": "a", "namespace": "n", "type": "fifo", "retention": "2h"'
    ((_, row),) = read(["{" + text + ', "attributes": {"k": 1}}'])
    assert (row.namespace, row.type, row.retention_ms) == ("n", meta_pb2.TOPIC_TYPE_FIFO, 7_200_000)
    assert dict(row.attributes) == {"k": "1"}
    table = read(["name,type,queues\n", "a,FIFO,2\n", "b,,\n", '"c",DELAY,1\n'])
    assert [(row.name, meta_pb2.TopicType.Name(row.type), row.queue_count) for _, row in table] == [
        ("a", "TOPIC_TYPE_FIFO", 2),
        ("b", "TOPIC_TYPE_NORMAL", 8),
        ("c", "TOPIC_TYPE_DELAY", 1),
    ]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["ok", '{"name": }'], "line 2: this is no JSON object"),
        (['{"queues": 3}'], "line 1: the topic has no name"),
        (['{"name": "a", "queue": 3}'], "line 1: 'queue' is unknown"),
        (['{"name": "a", "queues": 0}'], "line 1: 0 queues"),
        (['{"name": "a", "queues": true}'], "line 1: True queues"),
        (['{"name": "a", "type": "ODD"}'], "line 1: 'ODD' is no type"),
        (['{"name": "a", "retention": "long"}'], "line 1: 'long' is not a duration"),
        (['{"name": "a", "attributes": []}'], "line 1: attributes is an object"),
        (["name,colour"], "line 1: 'colour' is no column"),
        (["type,queues"], "line 1: there is no column name"),
        (['{"name": null}'], "line 1: the topic has no name"),
        (['{"name": ["a"]}'], 'line 1: name is \\["a"\\]; it is a text'),
        (['{"name": "a", "namespace": null}'], "line 1: namespace is null; it is a text"),
        (['{"name": "a", "attributes": {"k": true}}'], "line 1: k is true; it is a text"),
        (['{"name": "a", "retention": 1e999}'], "line 1: 'inf' is not a duration"),
        (['{"name": "a", "queues": ' + "1" * 5_000 + "}"], "line 1: "),
        (['{"name": ' + "[" * 200_000], "line 1: "),
        (["name,type", "x" * 200_000 + ",FIFO"], "line 2: field larger than field limit"),
        (['{"name": "\\ud800"}'], "line 1: "),
        (["name,type", "a"], "line 2: 1 values, the file has 2 columns"),
    ],
)
def test_a_wrong_line_is_named(lines: list[str], error: str) -> None:
    """The error has the line's number and what is wrong."""
    with pytest.raises(UsageError, match=error):
        read(lines)


def test_topics_go_in_batches(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No call has more topics, bytes or queues than the server takes; every line is in one."""
    scripted.answers["CreateTopics"] = all_created
    path = tmp_path / "names"
    path.write_text("".join(f"t{number}\n" for number in range(1_203)))
    arguments = ["topic", "create", "--from", str(path), "--endpoint", endpoint_of_scripted]
    assert run([*arguments, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "created": 1_203,
        "existing": 0,
        "failed": 0,
        "failures": [],
    }
    asked = scripted.asked("CreateTopics")
    assert [len(request.topics) for request in asked] == [500, 500, 203]
    names = [topic.name for request in asked for topic in request.topics]
    assert names == [f"t{number}" for number in range(1_203)]
    scripted.requests.clear()
    assert run([*arguments, "-o", "json", "--queues", "1000"]) == 0
    assert {len(request.topics) for request in scripted.asked("CreateTopics")} <= {16, 3}


def test_failures_are_told_by_line(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit code is 1, and each failed topic has its line and reason."""

    def answer(request: admin_pb2.CreateTopicsRequest) -> admin_pb2.CreateTopicsResponse:
        failure: Any = {"position": 1, "name": "b", "reason": "topic b exists with queue_count 2"}
        return admin_pb2.CreateTopicsResponse(created=1, existing=1, failures=[failure])

    scripted.answers["CreateTopics"] = answer
    path = tmp_path / "names"
    path.write_text("# three\na\nb\nc\n")
    arguments = ["topic", "create", "--from", str(path), "--endpoint", endpoint_of_scripted]
    assert run([*arguments, "-o", "json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failures"] == [
        {"line": 3, "name": "b", "namespace": "", "reason": "topic b exists with queue_count 2"}
    ]
    assert "1 topics could not be created; the others exist" in said.err


def test_a_file_full_of_failures_is_left(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After so many failures nothing more is tried, and the error has the last line tried."""

    def answer(request: admin_pb2.CreateTopicsRequest) -> admin_pb2.CreateTopicsResponse:
        count = len(request.topics)
        failures: Any = [{"position": number, "reason": "full"} for number in range(count)]
        return admin_pb2.CreateTopicsResponse(failures=failures)

    scripted.answers["CreateTopics"] = answer
    path = tmp_path / "names"
    path.write_text("".join(f"t{number}\n" for number in range(1_203)))
    arguments = ["topic", "create", "--from", str(path), "--endpoint", endpoint_of_scripted]
    assert run([*arguments, "-o", "json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["stopped"] == 1_000
    assert "1000 topics could not be created; nothing behind line 1000 was tried" in said.err
    assert len(scripted.asked("CreateTopics")) == 2


def test_errors_of_the_work_are_not_those_of_the_file(tmp_path: Path) -> None:
    """Only reading can fail with the name of the file in the error."""
    path = tmp_path / "names"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ConnectionResetError), topic_files.opened(str(path)):
        raise ConnectionResetError(104, "Connection reset by peer")
    with topic_files.opened(str(path)) as lines, pytest.raises(UsageError, match="no text in UTF"):
        list(lines)


def test_a_lost_answer_is_asked_for_again(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same batch is sent again, some times; a refusal is final and says how far it came."""
    monkeypatch.setattr(topic_files, "_PAUSE_S", 0.0)
    answers: list[Any] = [
        grpc.StatusCode.UNAVAILABLE,
        all_created,
        grpc.StatusCode.INVALID_ARGUMENT,
    ]

    def answer(request: Any) -> Any:
        made = answers.pop(0)
        return made(request) if callable(made) else made

    scripted.answers["CreateTopics"] = answer
    path = tmp_path / "names"
    path.write_text("".join(f"t{number}\n" for number in range(501)))
    arguments = ["topic", "create", "--from", str(path), "--endpoint", endpoint_of_scripted]
    assert run(arguments) == 4
    assert "line 501 and later; 500 topics are created" in capsys.readouterr().err
    assert [len(request.topics) for request in scripted.asked("CreateTopics")] == [500, 500, 1]


def test_a_file_stands_alone(endpoint_of_scripted: str, tmp_path: Path) -> None:
    """A name beside a file is a wrong command line, and so is neither of them."""
    connection = ["--endpoint", endpoint_of_scripted]
    assert run(["topic", "create", "a", "--from", "-", *connection]) == 2
    assert run(["topic", "create", *connection]) == 2
    assert run(["topic", "create", "--from", str(tmp_path / "missing"), *connection]) == 1


def test_a_list_goes_on_behind_its_page(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--limit ends the list, `next_page` continues it; short pages of the server are joined."""
    names = [f"t{number}" for number in range(6)]

    def answer(request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
        assert request.prefix == "t"
        first = int(request.page_token or 0)
        count = min(request.page_size, 2)
        page = names[first : first + count]
        more = first + count < len(names)
        return admin_pb2.ListTopicsResponse(
            topics=[meta_pb2.Topic(name=name) for name in page],
            next_page_token=str(first + count) if more else "",
        )

    scripted.answers["ListTopics"] = answer
    arguments = ["topic", "list", "--prefix", "t", "--endpoint", endpoint_of_scripted, "-o", "json"]
    pages, page = [], ""
    while True:
        assert run([*arguments, "--limit", "3", "--page", page]) == 0
        shown = json.loads(capsys.readouterr().out)
        pages.append([each["name"] for each in shown["topics"]])
        page = shown["next_page"]
        if not page:
            break
    assert pages == [names[:3], names[3:]]
    assert run(arguments) == 0
    assert len(json.loads(capsys.readouterr().out)["topics"]) == 6
    assert run([*arguments, "--limit", "0"]) == 2


def test_lite_topics_are_listed_in_pages(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--limit ends the list, `next_page` continues it; without it all pages are joined."""
    names = [f"chat-{number}" for number in range(5)]

    def answer(request: admin_pb2.ListLiteTopicsRequest) -> admin_pb2.ListLiteTopicsResponse:
        assert request.topic == "sessions"
        first = int(request.page_token.partition("/")[0] or 0)
        count = min(request.page_size, 2)
        response = admin_pb2.ListLiteTopicsResponse()
        for name in names[first : first + count]:
            response.lite_topics.add(name=name, raft_group=1, queue=1 << 20, next_offset=7)
        if first + count < len(names):
            response.next_page_token = f"{first + count}/x"
        return response

    scripted.answers["ListLiteTopics"] = answer
    arguments = ["topic", "list-lite", "sessions", "--endpoint", endpoint_of_scripted, "-o", "json"]
    assert run([*arguments, "--limit", "3"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in shown["lite_topics"]] == names[:3]
    assert run([*arguments, "--page", shown["next_page"]]) == 0
    rest = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in rest["lite_topics"]] == names[3:]
    assert rest["next_page"] == ""
    assert rest["lite_topics"][0] == {
        "name": "chat-3",
        "raft_group": 1,
        "queue": 1 << 20,
        "min_offset": 0,
        "next_offset": 7,
        "last_active_ms": 0,
    }
    assert run([*arguments, "--limit", "0"]) == 2
