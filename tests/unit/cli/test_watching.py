"""`--watch`, lag and rates: rounds of documents or of screens, until Ctrl-C."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
import pytest
import yaml

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import lags, watching
from strata_cli.main import run
from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

ROUNDS = 3


@pytest.fixture
def ends_after_rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Press Ctrl-C in the third pause; return the pauses."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == ROUNDS:
            raise KeyboardInterrupt

    monkeypatch.setattr("strata_cli.watching.time.sleep", pause)
    return pauses


def promised(command: str) -> set[str]:
    """Return the keys that the page names for a command."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def consuming(scripted: ScriptedAdmin) -> None:
    """Let a broker answer for two consumer groups, one of which moves on."""
    cursors = iter(range(10, 1_000, 10))

    def group(
        request: admin_pb2.GetConsumerGroupRequest,
    ) -> admin_pb2.GetConsumerGroupResponse | grpc.StatusCode:
        if request.name not in ("slow", "quick"):
            return grpc.StatusCode.NOT_FOUND
        cursor = next(cursors) if request.name == "quick" else 0
        lag = admin_pb2.ConsumerQueueLag(
            topic="orders", cursor=cursor, next_offset=5_000, lag=5_000 - cursor, in_flight=2
        )
        return admin_pb2.GetConsumerGroupResponse(
            queues=[lag], members=[admin_pb2.GroupMember(client_id="c")]
        )

    scripted.answers["GetConsumerGroup"] = group
    scripted.answers["ListConsumerGroups"] = admin_pb2.ListConsumerGroupsResponse(
        consumer_groups=[meta_pb2.ConsumerGroup(name=name) for name in ("gone", "quick", "slow")]
    )


def test_the_lag_of_all_groups_with_their_rates(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    ends_after_rounds: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One document per round; the highest lag first; a group that was deleted is left out."""
    consuming(scripted)
    command = ["group", "lag", "--watch", "--interval", "3s", "--endpoint", endpoint_of_scripted]
    assert run([*command, "-o", "json"]) == 130
    rounds = [json.loads(line)["groups"] for line in capsys.readouterr().out.splitlines()]
    assert ends_after_rounds == [3.0] * ROUNDS
    assert [[each["group"] for each in groups] for groups in rounds] == [["slow", "quick"]] * ROUNDS
    assert [each["lag"] for each in rounds[0]] == [5_000, 4_990]
    assert rounds[0][1]["consumed_per_s"] is None
    assert all(groups[1]["consumed_per_s"] > 0 for groups in rounds[1:])
    assert all(groups[0]["consumed_per_s"] == 0 for groups in rounds[1:])
    keys = {key for each in rounds[0] for key in (*each, *each["topics"][0])}
    assert keys | {"groups"} == promised("group lag")


def test_lag_of_one_group_and_of_none(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """People see topics; a limit hides what is of no interest; a wrong name is code 3."""
    consuming(scripted)
    connection = ("--endpoint", endpoint_of_scripted)
    assert run(["group", "lag", "slow", *connection]) == 0
    out = capsys.readouterr().out
    assert re.search(r"topic +queues +lag", out)
    assert re.search(r"orders +1 +5000", out)
    assert run(["group", "lag", "--above", "5000", *connection]) == 0
    assert capsys.readouterr().out == "no groups\n"
    assert run(["group", "lag", "gone", *connection]) == 3
    assert "consumer group gone does not exist" in capsys.readouterr().err


def test_topics_are_watched_with_their_rates(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    ends_after_rounds: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """YAML documents begin with ---, so that a stream of them can be read."""
    grown = iter(range(100, 1_000, 100))
    scripted.answers["ListTopics"] = admin_pb2.ListTopicsResponse(
        topics=[meta_pb2.Topic(name="orders")]
    )
    scripted.answers["GetTopic"] = lambda request: admin_pb2.GetTopicResponse(
        queues=[admin_pb2.QueueStatus(min_offset=50, next_offset=next(grown))]
    )
    command = ["topic", "list", "--watch", "--endpoint", endpoint_of_scripted, "-o", "yaml"]
    assert run(command) == 130
    rounds = [each["topics"][0] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert [each["messages"] for each in rounds] == [50, 150, 250]
    assert rounds[0]["messages_per_s"] is None
    assert rounds[1]["messages_per_s"] > 0
    assert set(rounds[0]) >= promised("topic rates") - {"topics"}


def test_a_broker_that_comes_back_is_watched_on(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    ends_after_rounds: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A later round that fails is told; the first one ends the command."""

    def answers() -> Iterator[object]:
        yield admin_pb2.ListTopicsResponse()
        yield grpc.StatusCode.UNAVAILABLE
        yield admin_pb2.ListTopicsResponse()

    found = answers()
    scripted.answers["ListTopics"] = lambda request: next(found)
    command = ["topic", "list", "--watch", "--endpoint", endpoint_of_scripted]
    assert run(command) == 130
    output = capsys.readouterr()
    assert output.out.count("no topics") == 2
    assert output.err.count("strata: ") == 1
    scripted.answers["ListTopics"] = grpc.StatusCode.UNAVAILABLE
    assert run(command) == 5


def test_the_pause_has_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody asks a broker without a pause."""
    assert run(["group", "lag", "--watch", "--interval", "1ms"]) == 2
    assert "at least 200ms" in capsys.readouterr().err


def test_a_screen_holds_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line counts the others."""
    monkeypatch.setenv("LINES", "5")
    text = "".join(f"{number}\n" for number in range(10))
    assert watching._fitted(text) == "0\n1\n2\n... 7 more lines\n"
    assert watching._fitted("0\n1\n") == "0\n1\n"


def test_a_counter_that_was_set_back_has_no_rate() -> None:
    """A reset of a consumer group is no negative consumption."""
    rates = lags.CounterRates()
    assert rates.rate(("g",), 100) is None
    assert rates.rate(("g",), 50) == 0.0
