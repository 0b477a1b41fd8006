"""`strata apply` and `strata export`: files, the differences they make, and wrong ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import yaml

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.declared import duration, read_entries
from strata_cli.errors import UsageError
from strata_cli.main import run
from strata_cli.options import milliseconds
from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

FILE = """
topics:
  - name: orders
    queues: 16
    retention: 7d
  - {name: same, type: FIFO}
  - {name: fresh, attributes: {team: 7}}
groups:
  - name: billing
    max_attempts: 5
    backoff: {kind: customized, next_ms: [1000, 5000]}
"""


@pytest.fixture
def there(scripted: ScriptedAdmin) -> ScriptedAdmin:
    """A broker with two topics and a consumer group, which takes every change."""
    scripted.answers = {
        "ListTopics": admin_pb2.ListTopicsResponse(
            topics=[
                meta_pb2.Topic(
                    name="orders",
                    type=meta_pb2.TOPIC_TYPE_NORMAL,
                    queue_count=8,
                    retention_ms=72 * 3_600_000,
                ),
                meta_pb2.Topic(name="same", type=meta_pb2.TOPIC_TYPE_FIFO, queue_count=8),
            ]
        ),
        "ListConsumerGroups": admin_pb2.ListConsumerGroupsResponse(
            consumer_groups=[
                meta_pb2.ConsumerGroup(
                    name="billing",
                    max_attempts=16,
                    customized=meta_pb2.CustomizedBackoff(next_ms=[1_000, 5_000]),
                )
            ]
        ),
        "CreateTopic": admin_pb2.CreateTopicResponse(),
        "UpdateTopic": admin_pb2.UpdateTopicResponse(),
        "CreateConsumerGroup": admin_pb2.CreateConsumerGroupResponse(),
        "UpdateConsumerGroup": admin_pb2.UpdateConsumerGroupResponse(),
    }
    return scripted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topics.yaml"
    path.write_text(FILE)
    return path


def test_a_dry_run_shows_the_difference_and_changes_nothing(
    there: ScriptedAdmin,
    endpoint_of_scripted: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Line by line for people, with the promised keys for programs."""
    command = ["apply", "-f", str(file), "--dry-run", "--endpoint", endpoint_of_scripted]
    assert run(command) == 0
    assert capsys.readouterr().out == (
        "topic orders: update\n  - queues: 8\n  + queues: 16\n  - retention: 3d\n"
        "  + retention: 7d\ntopic fresh: create\n  + type: NORMAL\n  + queues: 8\n"
        "  + retention: 3d\n  + attributes: team=7\ngroup billing: update\n  - max_attempts: 16\n"
        "  + max_attempts: 5\n1 would be created, 2 would be updated, 1 unchanged\n"
    )
    assert run([*command, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["apply"]))
    changes = told["changes"]
    keys = {key for each in changes for row in (each, *each["fields"]) for key in row}
    assert {*told, *keys} <= promised
    assert [each["action"] for each in told["changes"]] == ["update", "none", "create", "update"]
    assert not [rpc for rpc, _ in there.requests if rpc.startswith(("Create", "Update"))]


def test_only_what_differs_is_sent(
    there: ScriptedAdmin, endpoint_of_scripted: str, file: Path
) -> None:
    """A create for what is new, an update of the fields that differ for what is there."""
    assert run(["apply", "-f", str(file), "--endpoint", endpoint_of_scripted]) == 0
    (created,) = there.asked("CreateTopic")
    assert (created.topic.name, created.topic.queue_count) == ("fresh", 8)
    assert dict(created.topic.attributes) == {"team": "7"}
    (updated,) = there.asked("UpdateTopic")
    assert list(updated.update_mask) == ["queue_count", "retention_ms"]
    assert (updated.topic.queue_count, updated.topic.retention_ms) == (16, 7 * 86_400_000)
    (group,) = there.asked("UpdateConsumerGroup")
    assert (list(group.update_mask), group.consumer_group.max_attempts) == (["max_attempts"], 5)


def test_what_was_exported_changes_nothing(
    there: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both forms are read again; nothing differs."""
    connection = ("--endpoint", endpoint_of_scripted)
    for form in (["-o", "json"], []):
        assert run(["export", *connection, *form]) == 0
        text = capsys.readouterr().out
        assert yaml.safe_load(text)["topics"][0]["retention"] == "3d"
        path = tmp_path / "exported"
        path.write_text(text)
        assert run(["apply", "-f", str(path), "--dry-run", *connection]) == 0
        assert capsys.readouterr().out == "0 would be created, 0 would be updated, 3 unchanged\n"


def test_a_refusal_says_how_far_it_came(
    there: ScriptedAdmin,
    endpoint_of_scripted: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command can be repeated: what was done is unchanged then."""
    there.answers["CreateTopic"] = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert run(["apply", "-f", str(file), "--endpoint", endpoint_of_scripted]) == 4
    assert "topic fresh: CreateTopic is refused (after 1 changes)" in capsys.readouterr().err
    file.write_text("topics: [{name: orders, queues: 2}]")
    assert run(["apply", "-f", str(file), "--endpoint", endpoint_of_scripted]) == 4
    assert "topic orders has 8 queues, the file says 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topics: [", "not YAML"),
        ("- x", "the lists topics and groups"),
        ("queues: []", "the lists topics and groups"),
        ("topics: 3", "topics is a list"),
        ("topics: [{queues: 3}]", "has no name"),
        ("topics: [{name: t, queue: 3}]", "topic t: queue: unknown key; known are type"),
        ("topics: [{name: t, queues: 0}]", "topic t: queues: 0 is less than 1"),
        ("topics: [{name: t, queues: yes}]", "topic t: queues: True is not a number"),
        ("topics: [{name: t, type: ODD}]", "topic t: type: 'ODD' is none of NORMAL, FIFO"),
        ("topics: [{name: t, retention: 3}]", "topic t: retention: '3' is not a duration"),
        ("groups: [{name: g, fifo: 1}]", "group g: fifo: 1 is not true or false"),
        ("groups: [{name: g, backoff: {kind: x}}]", "group g: backoff: write kind"),
        ("topics: [{name: t}, {name: t}]", "topic t is in the file twice"),
        ("topics: [{name: t}]\ntopics: [{name: u}]", "line 2: topics is there twice"),
        ("topics: [{name: t, queues: 4, queues: 8}]", "line 1: queues is there twice"),
        ('{"groups": [], "topics": [{"name": "t"}], "groups": []}', "line 1: groups is there twi"),
        ("topics: [{name: t, queues: 99999999999}]", "topic t: Value out of range: 99999999999"),
        (f"topics: [{{name: t, retention: {'9' * 400}d}}]", "topic t: retention: '999"),
        ("groups: [{name: g, max_attempts: 99999999999}]", "group g: Value out of range"),
        ("groups: [{name: g, backoff: {kind: customized, next_ms: [-1]}}]", "group g: Value out"),
        ("groups: [{name: g, backoff: {kind: customized, next_ms: [x]}}]", "group g: "),
        ("groups: [{name: g, backoff: {kind: customized, next_ms: 5}}]", "group g: "),
        ("topics: [{name: t, attributes: {since: 2026-02-31}}]", "the file cannot be read: day"),
        (f"topics: {'[' * 5_000}", "the file "),
    ],
)
def test_a_wrong_file_is_one_line(text: str, reason: str) -> None:
    """The entry and the key are named."""
    with pytest.raises(UsageError) as caught:
        read_entries(text, "")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_entry_may_take_the_keys_of_another_one() -> None:
    """A key of its own wins over one that `<<` brings along; that is no repetition."""
    entries = read_entries(
        "topics:\n- &a {name: a, queues: 3}\n- &b {<<: *a, name: b}\n- {<<: *b, name: c}\n", ""
    )
    assert [(entry["name"], entry["queues"]) for _, entry in entries] == [
        ("a", 3),
        ("b", 3),
        ("c", 3),
    ]


@pytest.mark.parametrize("value_ms", [1, 999, 1_000, 90_000, 259_200_000, 3_600_001])
def test_a_duration_is_exact(value_ms: int) -> None:
    """An export reads back as the same value."""
    assert milliseconds(duration(value_ms)) == value_ms


def _with_deletes(there: ScriptedAdmin) -> None:
    there.answers |= {
        "DeleteTopic": admin_pb2.DeleteTopicResponse(),
        "DeleteConsumerGroup": admin_pb2.DeleteConsumerGroupResponse(),
    }


def test_what_the_file_does_not_name_is_pruned_only_when_told(
    there: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only kinds of which the file has an entry; without a terminal --yes is needed."""
    _with_deletes(there)
    there.answers["ListTopics"].topics.add(name="__strata_own", queue_count=1)
    # The broker makes it; messages wait there for their next delivery.
    there.answers["ListTopics"].topics.add(name="%RETRY%billing", queue_count=1)
    file = tmp_path / "few.yaml"
    file.write_text("topics: [{name: orders}]\n")
    command = ["apply", "-f", str(file), "--prune", "--endpoint", endpoint_of_scripted]
    assert run([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "topic same: delete\n0 would be created, 0 would be updated, 1 would be deleted, "
        "1 unchanged\n"
    )
    assert run(command) == 2
    assert "--prune deletes topic same: give --yes" in capsys.readouterr().err
    assert there.asked("DeleteTopic") == []
    assert run([*command, "--yes", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["deleted"], told["unchanged"]) == (1, 1)
    assert [request.name for request in there.asked("DeleteTopic")] == ["same"]
    assert there.asked("DeleteConsumerGroup") == []


def test_a_file_of_two_prunes_nothing(
    there: ScriptedAdmin,
    endpoint_of_scripted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`cat a.yaml b.yaml` has two lists of topics: those of the first must not be deleted."""
    _with_deletes(there)
    file = tmp_path / "both.yaml"
    file.write_text("topics: [{name: orders}]\ntopics: [{name: same}]\n")
    command = ["apply", "-f", str(file), "--prune", "--yes", "--endpoint", endpoint_of_scripted]
    assert run(command) == 2
    assert "line 2: topics is there twice" in capsys.readouterr().err
    assert there.asked("DeleteTopic") == []


def test_groups_are_pruned_where_the_file_has_groups(
    there: ScriptedAdmin, endpoint_of_scripted: str, tmp_path: Path
) -> None:
    """An empty list names no kind: it deletes nothing."""
    _with_deletes(there)
    there.answers["ListConsumerGroups"].consumer_groups.add(name="left", max_attempts=16)
    file = tmp_path / "groups.yaml"
    file.write_text("topics: []\ngroups: [{name: billing}]\n")
    command = ["apply", "-f", str(file), "--prune", "--yes", "--endpoint", endpoint_of_scripted]
    assert run(command) == 0
    assert [request.name for request in there.asked("DeleteConsumerGroup")] == ["left"]
    assert there.asked("DeleteTopic") == []
