"""`strata quota` against a real standalone node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node

LIMITS = ("messages_per_s", "bytes_per_s", "topics", "consumer_groups", "connections")


def limits_of(shown: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    """Limit -> (value, whether it is the default)."""
    return {one["name"]: (one["limit"], one["is_default"]) for one in shown["limits"]}


def test_limits_of_a_namespace(node: Node) -> None:
    """Set, show, list and give back; what is not named stays."""
    made = node.json(
        *("quota", "set", "--namespace", "shop", "--messages-per-s", "1000", "--topics", "1"),
    )
    assert set(re.findall(r"`([a-z_]+)`", JSON_KEYS["quota set"])) == {
        *made,
        *(key for one in made["limits"] for key in one),
    }
    node.json("quota", "set", "--namespace", "shop", "--connections", "none")
    shown = node.json("quota", "show", "--namespace", "shop")
    assert limits_of(shown) == {
        "messages_per_s": (1_000, False),
        "bytes_per_s": (0, True),
        "topics": (1, False),
        "consumer_groups": (0, True),
        "connections": (0, False),
    }
    (row,) = node.json("quota", "list", "--namespace", "shop")["quotas"]
    expected = dict.fromkeys(LIMITS) | {"messages_per_s": 1_000, "topics": 1, "connections": 0}
    assert row == {"namespace": "shop", "topic": ""} | expected

    node.json("topic", "create", "one", "--namespace", "shop")
    refused = node.strata("topic", "create", "two", "--namespace", "shop")
    assert (refused.returncode, refused.stderr) == (
        4,
        "strata: the quota of namespace [shop] is 1 topics\n",
    )
    used = {
        one["name"]: one["used"]
        for one in node.json("quota", "show", "--namespace", "shop")["limits"]
    }
    assert used["topics"] == 1

    back = ("--messages-per-s", "default", "--topics", "default", "--connections", "default")
    node.json("quota", "set", "--namespace", "shop", *back)
    assert node.json("quota", "list", "--namespace", "shop") == {"quotas": []}
    node.json("topic", "create", "two", "--namespace", "shop")


def test_limits_of_a_topic(node: Node) -> None:
    """They hold at once, and go with the topic."""
    node.json("topic", "create", "limited")
    node.json("quota", "set", "--topic", "limited", "--bytes-per-s", "1")
    node.json("message", "send", "limited", "--body", "the burst")
    refused = node.strata("message", "send", "limited", "--body", "too much")
    assert refused.returncode == 4
    assert "the quota of topic [limited] of the default namespace is 1 bytes/s" in refused.stderr

    everywhere = node.json("quota", "list", "--all-namespaces")["quotas"]
    assert [(row["topic"], row["bytes_per_s"]) for row in everywhere] == [("limited", 1)]
    node.json("topic", "delete", "limited")
    assert node.json("quota", "list") == {"quotas": []}


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (("set",), "nothing to set", 2),
        (("set", "--topics", "0"), "--topics 0: give a number above 0, none or default", 2),
        (("set", "--groups", "many"), "--groups many: give a number above 0, none or default", 2),
        (("set", "--topic", "none", "--messages-per-s", "1"), "topic none does not exist", 3),
        (("set", "--topic", "t", "--topics", "1"), "topics cannot be changed", 4),
        (("show", "--topic", "none"), "topic none does not exist", 3),
    ],
)
def test_refusals(node: Node, arguments: tuple[str, ...], reason: str, code: int) -> None:
    """A thing that cannot be limited is told in one line."""
    if "t" in arguments:
        node.strata("topic", "create", "t")
    done = node.strata("quota", *arguments)
    assert done.returncode == code, done.stderr
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
