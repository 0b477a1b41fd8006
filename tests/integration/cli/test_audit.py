"""The audit trail of a node that controls access, and secrets that must be nowhere."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from strata_cli.main import run
from strata_testing import until_blocking
from tests.integration.cli.test_observability import Collector
from tests.parts.ports import free_port

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node, StartNode

PLANTED = "PLANTED"
ROOT, SHOP, NEXT, WRONG = (f"{PLANTED}-{name}-secret" for name in ("root", "shop", "next", "wrong"))


class Done(NamedTuple):
    """Outcome of a command."""

    code: int
    out: str
    err: str


class Commands:
    """Runs commands in this process: a process for each takes half a second."""

    def __init__(
        self, node: Node, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._patch = patch
        self._capture = capture
        self._patch.setenv("STRATA_ENDPOINT", node.endpoint)
        self.done: list[Done] = []

    def strata(self, who: tuple[str, ...], *arguments: str) -> Done:
        """Run a command with a user's keys; none of them is on the command line."""
        names = ("STRATA_ACCESS_KEY", "STRATA_SECRET_KEY", "STRATA_SESSION_TOKEN")
        for name, value in zip(names, (*who, ""), strict=False):
            self._patch.setenv(name, value)
        code = run(arguments)
        done = Done(code, *self._capture.readouterr())
        self.done.append(done)
        return done

    def json(self, who: tuple[str, ...], *arguments: str) -> dict[str, Any]:
        done = self.strata(who, *arguments, "-o", "json")
        assert (done.code, done.err) == (0, "")
        self.done.pop()
        result: dict[str, Any] = json.loads(done.out)
        return result


def secret_file(folder: Path, name: str, secret: str) -> str:
    file = folder / name
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    return str(file)


def test_the_trail_tells_who_did_what_and_no_secret(
    start_node: StartNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Changes, refusals and sign-ins are in the log, the file and the topic; secrets nowhere."""
    given, audit_file, port = tmp_path / "root.json", tmp_path / "audit.json", free_port()
    given.write_text(json.dumps({"access_key": "root", "secret_key": ROOT}))
    collector = Collector()
    node = start_node(
        *("--access-control", "on", "--first-admin-file", str(given)),
        *("--metrics-port", str(port), "--log-level", "debug"),
        STRATA_NODE_AUDIT_FILE=str(audit_file),
        STRATA_AUDIT_TOPIC="true",
        STRATA_OBSERVABILITY_OTLP_ENDPOINT=collector.endpoint,
        STRATA_OBSERVABILITY_OTLP_INTERVAL_MS="200",
        STRATA_OBSERVABILITY_TRACE_CLIENTS="true",
    )
    commands = Commands(node, monkeypatch, capsys)
    session = do_everything(commands, tmp_path)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        scraped = response.read().decode()
    until_blocking(lambda: "strata_log_sync_ms" in collector.metrics)
    received: list[dict[str, Any]] = []

    def all_came() -> bool:
        receive = ("message", "receive", "__strata_audit", "--group", "audit", "--count", "32")
        got = commands.json(("root", ROOT), *receive)
        received.extend(json.loads(message["body"]) for message in got["messages"])
        return any(event.get("rpc") == "RotateUserKey" for event in received)

    until_blocking(all_came)
    code, out, err = node.stop()
    collector.stop()
    assert code == 0, err[-3000:]

    lines = audit_file.read_text()
    check_events([json.loads(line) for line in lines.splitlines()])
    assert "RotateUserKey" in err, "the log has it, too"

    places = {
        "audit file": lines,
        "audit topic": json.dumps(received),
        "log": out + err,
        "metrics": scraped + repr(collector.metrics),
        "traces": repr(collector.spans),
        "commands": "".join(done.out + done.err for done in commands.done),
    }
    secrets = (ROOT, SHOP, NEXT, WRONG, session["secret_key"], session["session_token"])
    found = {place: [one for one in secrets if one in text] for place, text in places.items()}
    assert found == {place: [] for place in places}
    assert PLANTED not in "".join(places.values())


def do_everything(commands: Commands, folder: Path) -> dict[str, Any]:
    """Change, refuse and show things with the planted secrets; return temporary keys."""
    root, shop = ("root", ROOT), ("shop", SHOP)
    send = ("message", "send", "orders", "--body", "x")
    commands.json(root, "topic", "create", "orders")
    of_shop = secret_file(folder, "a", SHOP)
    commands.json(root, "user", "create", "shop", "--secret-key-file", of_shop)
    assert commands.strata(shop, *send).code != 0, "no policy allows it"
    policy = ("--resource", "topic:orders", "--actions", "pub,get")
    commands.json(root, "policy", "create", "shop", *policy)
    commands.json(shop, *send)
    assert commands.strata(("shop", WRONG), *send).code != 0

    session = commands.json(root, "user", "session", "shop", "--duration", "10m")
    commands.json(("shop", session["secret_key"], session["session_token"]), *send)
    again = secret_file(folder, "b", NEXT)
    rotate = ("user", "rotate-key", "shop", "--secret-key-file", again, "--previous-valid", "1h")
    commands.json(root, *rotate)
    commands.json(("shop", NEXT), *send)
    for command in (("config", "show"), ("user", "list"), ("user", "show", "shop")):
        for form in ((), ("-o", "json")):
            assert commands.strata(root, *command, *form).code == 0
    return session


def check_events(events: list[dict[str, Any]]) -> None:
    """Compare the lines of the file with what was done."""
    done_by_root = {event["rpc"] for event in events if event["event"] == "changed"}
    assert {"CreateTopic", "CreateUser", "CreatePolicy", "RotateUserKey"} <= done_by_root
    assert {event["user"] for event in events if event["event"] == "signed in"} == {"root", "shop"}
    refusals = [event for event in events if event["event"] == "refused"]
    assert {event["user"] for event in refusals} == {"shop"}
    assert any("orders" in event.get("resource", "") for event in refusals)
    assert events[0]["event"] == "first admin made"
    assert all(event["peer"].startswith("127.0.0.1:") for event in events[1:])
