"""`strata migrate access` from files into a real node: users, keys, policies, repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strata_cli.reference import JSON_KEYS
from tests.integration.cli.conftest import Node

PLAIN = """
accounts:
  - accessKey: migrated-shop
    secretKey: shopsecret1
    defaultTopicPerm: SUB
    topicPerms: [orders=PUB|SUB, secrets=DENY]
    groupPerms: [readers=SUB]
  - accessKey: migrated-boss
    admin: true
  - accessKey: ab
    secretKey: shopsecret1
"""


def policies_of(node: Node, user: str) -> list[tuple[str, tuple[str, ...], str]]:
    shown = node.json("policy", "list", "--user", user)["policies"]
    return sorted((one["resource"], tuple(one["actions"]), one["decision"]) for one in shown)


def copied(node: Node, path: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Copy; return the exit code and the rows by user."""
    done = node.inside("migrate", "access", "--plain-acl", str(path), "-o", "json", *options)
    rows = json.loads(done.out)["users"]
    return done.code, {row["user"]: row for row in rows}


def test_users_and_rights_of_a_file_are_made_once(node: Node, tmp_path: Path) -> None:
    """A dry run makes nothing; a user that cannot be made is named, and hinders nobody."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN)
    _, planned = copied(node, path, "--dry-run")
    assert {name: len(row["policies"]) for name, row in planned.items()} == {
        "migrated-boss": 0,
        "migrated-shop": 4,
        "ab": 0,
    }
    assert not [one for one in node.json("user", "list")["users"] if "migrated" in one["name"]]

    code, rows = copied(node, path)
    assert code == 1
    assert set(rows["ab"]) <= set(JSON_KEYS["migrate access"].split("`"))
    assert "3 to 64 characters" in rows["ab"]["problem"]
    assert rows["migrated-shop"]["secret_key"] == ""
    assert len(rows["migrated-boss"]["secret_key"]) >= 8, "the file has none, so one was made"
    assert policies_of(node, "migrated-shop") == [
        ("group:readers", ("sub",), "allow"),
        ("topic:*", ("sub",), "allow"),
        ("topic:orders", ("pub", "sub"), "allow"),
        ("topic:secrets", ("sub",), "deny"),
    ]
    assert node.json("user", "show", "migrated-boss")["admin"] is True

    code, rows = copied(node, path)
    assert (code, rows["migrated-shop"]["exists"]) == (1, True)
    assert (rows["migrated-shop"]["policies"], rows["migrated-shop"]["kept_policies"]) == ([], 4)
    assert rows["migrated-boss"]["secret_key"] == "", "its key was shown once"
    assert len(policies_of(node, "migrated-shop")) == 4


def test_a_source_or_a_file_is_needed(node: Node, tmp_path: Path) -> None:
    """The error says what to give; an error in a file shows nothing of it."""
    assert "--plain-acl" in node.strata("migrate", "access").stderr
    path = tmp_path / "bad.yml"
    path.write_text("accounts: [{secretKey: hushhush")
    refused = node.strata("migrate", "access", "--plain-acl", str(path))
    assert refused.returncode
    assert "hushhush" not in refused.stderr + refused.stdout
