"""`strata user` and `strata policy` against a real standalone node."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from strata_cli.reference import JSON_KEYS
from tests.integration.cli.conftest import STRATA

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Node


def keys_of(command: str) -> set[str]:
    """Keys that the reference page names for a command."""
    return set(re.findall(r"`([a-z_]+)`", JSON_KEYS[command]))


def test_a_user_and_its_keys(node: Node, tmp_path: Path) -> None:
    """Keys are printed once, by the command that makes them; a list never has them."""
    made = node.json("user", "create", "shop")
    assert set(made) == keys_of("user create")
    assert (made["access_key"], made["admin"], len(made["secret_key"])) == ("shop", False, 32)
    file = tmp_path / "key"
    file.write_text("a-secret-of-its-own\n")
    file.chmod(0o600)
    given = node.json("user", "create", "root", "--admin", "--secret-key-file", str(file))
    assert given == {"access_key": "root", "secret_key": "a-secret-of-its-own", "admin": True}

    listed = node.json("user", "list")["users"]
    assert [user["name"] for user in listed] == ["root", "shop"]
    assert set(listed[0]) | {"users"} == keys_of("user list")
    assert "secret" not in json.dumps(listed) + node.strata("user", "list").stdout

    rotated = node.json("user", "rotate-key", "shop", "--previous-valid", "1h")
    assert set(rotated) == keys_of("user rotate-key")
    assert rotated["secret_key"] not in ("", made["secret_key"])
    assert rotated["previous_valid_until_ms"] > 0
    assert (
        node.json("user", "rotate-key", "shop", "--previous-valid", "0s")["previous_valid_until_ms"]
        == 0
    )

    session = node.json("user", "session", "shop", "--duration", "15m")
    assert set(session) == keys_of("user session")
    assert session["access_key"] == "shop"
    assert node.json("user", "disable", "shop")["disabled"]
    refused = node.strata("user", "session", "shop")
    assert (refused.returncode, refused.stderr) == (4, "strata: user shop is disabled\n")
    assert not node.json("user", "enable", "shop")["disabled"]

    assert node.json("user", "delete", "shop") == {"deleted": "shop"}
    last = node.strata("user", "delete", "root")
    assert last.returncode == 4
    assert "root is the last admin" in last.stderr
    assert node.strata("user", "disable", "root").returncode == 4


def test_policies_of_a_user(node: Node) -> None:
    """`test` says which policy decides; a user's policies go with it."""
    node.json("user", "create", "mail")
    allow = node.json(
        *("policy", "create", "mail", "--resource", "topic:orders*", "--actions", "pub,sub"),
        *("--decision", "allow", "--source", "10.0.0.0/8"),
    )
    assert set(allow) == keys_of("policy create")
    assert (allow["resource"], allow["actions"]) == ("topic:orders*", ["pub", "sub"])
    assert (allow["decision"], allow["sources"]) == ("allow", ["10.0.0.0/8"])
    deny = node.json(
        *("policy", "create", "mail", "--resource", "topic:orders-secret", "--actions", "all"),
        *("--decision", "deny"),
    )
    other = node.json(
        *("policy", "create", "mail", "--resource", "topic:*", "--actions", "pub"),
        *("--namespace", "shop"),
    )
    assert other["resource"] == "topic:shop/*"
    assert node.json("policy", "list", "--user", "mail")["policies"] == [allow, deny, other]
    assert node.json("policy", "show", str(deny["policy_id"])) == deny
    shown = node.json("user", "show", "mail")
    assert shown["policies"] == [allow, deny, other]

    def test(resource: str, *more: str) -> dict[str, Any]:
        return node.json("policy", "test", "mail", "--resource", resource, "--action", "pub", *more)

    allowed = test("topic:orders-1", "--source", "10.1.2.3")
    assert set(allowed) == keys_of("policy test")
    assert (allowed["allowed"], allowed["policy_id"]) == (True, allow["policy_id"])
    assert allowed["policy"] == allow
    denied = test("topic:orders-secret", "--source", "10.1.2.3")
    assert (denied["allowed"], denied["policy_id"]) == (False, deny["policy_id"])
    nobody = test("topic:orders-1", "--source", "11.0.0.1")
    assert (nobody["allowed"], nobody["policy_id"], nobody["policy"]) == (False, None, None)
    assert nobody["reason"] == "no policy of mail allows pub on topic:orders-1"

    assert node.json("policy", "delete", str(deny["policy_id"])) == {"deleted": deny["policy_id"]}
    node.json("user", "delete", "mail")
    assert node.json("policy", "list", "--user", "mail") == {"policies": []}


def test_a_cluster_key_is_rotated(node: Node) -> None:
    """The first one was made before the node was ready."""
    assert node.json("cluster", "rotate-key") == {"key_id": 2}


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (("user", "create", "a b"), "3 to 64 characters", 4),
        (("user", "show", "nobody"), "user nobody does not exist", 3),
        (("user", "session", "nobody"), "user nobody does not exist", 3),
        (("policy", "show", "999"), "policy 999 does not exist", 3),
        (("policy", "delete", "999"), "policy 999 does not exist", 3),
        (
            ("policy", "create", "nobody", "--resource", "topic:a", "--actions", "pub"),
            "user nobody does not exist",
            3,
        ),
    ],
)
def test_refusals(node: Node, arguments: tuple[str, ...], reason: str, code: int) -> None:
    """One line, and an exit code by its kind."""
    done = node.strata(*arguments)
    assert done.returncode == code, done.stderr
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_profile_names_node_namespace_and_keys(node: Node, tmp_path: Path) -> None:
    """No key is on the command line; files that others can read are refused."""
    profiles, secret = tmp_path / "profiles.toml", tmp_path / "ann.key"
    profiles.write_text(
        f'[ann]\nendpoint = "{node.endpoint}"\nnamespace = "shop"\naccess_key = "ann"\n'
        'secret_key_file = "ann.key"\n'
    )
    secret.write_text("hush-hush\n")
    secret.chmod(0o600)

    def strata(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            key: each for key, each in os.environ.items() if not key.startswith("STRATA_")
        }
        return subprocess.run(
            [*STRATA, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment | {"STRATA_CONFIG": str(profiles)},
        )

    made = strata("topic", "create", "of-a-profile", "--profile", "ann", "-o", "json")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["namespace"] == "shop"
    unknown = strata("topic", "list", "--profile", "bob")
    assert unknown.stderr == f"strata: --profile bob: {profiles} has ann\n"
    assert unknown.returncode == 2
    secret.chmod(0o640)
    open_to_all = strata("topic", "list", "--profile", "ann")
    assert open_to_all.returncode == 1
    assert f"other users can read {secret}; chmod 600" in open_to_all.stderr
    assert "hush-hush" not in open_to_all.stderr
