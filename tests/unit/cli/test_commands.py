"""The command tree: contracts of names and flags, help, errors as one line, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_cli.main import app, run
from strata_cli.reference import JSON_KEYS, commands, render

ROOT = Path(__file__).parents[3]

FLAGS = {
    "standalone": ["--data-dir", "--host", "--grpc-port", "--config"],
    "nameserver": ["--config", "--data-dir", "--host", "--port", "--nameservers"],
    "storage": ["--config", "--data-dir", "--host", "--port", "--nameservers", "--rack"],
    "broker": ["--config", "--data-dir", "--host", "--grpc-port", "--nameservers"],
    "local up": ["--nameservers", "--storage", "--brokers", "--data-dir", "--virtual-address"],
    "local status": ["--data-dir"],
    "local kill": ["--data-dir"],
    "local stop": ["--data-dir"],
    "local pause": ["--data-dir"],
    "local resume": ["--data-dir"],
    "local start": ["--data-dir"],
    "local down": ["--data-dir"],
    "cluster show": [],
    "raft-group list": [],
    "raft-group show": [],
    "node list": [],
    "node show": [],
    "node drain": [],
    "node remove": [],
    "queue show": [],
    "queue explain": [],
    "queue move": ["--to"],
    "slot list": ["--raft-group"],
    "slot move": ["--to"],
    "replica add": ["--node", "--learner"],
    "replica remove": ["--node"],
    "leader transfer": ["--to"],
    "config show": [],
    "topic create": ["--type", "--queues", "--namespace", "--retention"],
    "topic list": [],
    "topic show": [],
    "topic update": ["--type", "--queues", "--retention"],
    "topic delete": [],
    "group create": [
        *("--namespace", "--fifo", "--max-attempts", "--backoff-ms", "--backoff-exp"),
        *("--lite-topic", "--broadcast"),
    ],
    "group list": [],
    "group show": [],
    "group update": ["--fifo", "--max-attempts", "--backoff-ms", "--backoff-exp"],
    "group delete": [],
    "group reset": ["--to"],
    "message send": ["--body", "--tag", "--key", "--group", "--property"],
    "message receive": ["--group", "--count", "--ack"],
    "message show": ["--id", "--key", "--offset"],
    "log dump": [],
    "log repair": ["--raft-group", "--dry-run", "--yes"],
    "log verify": [],
}
COMMON_FLAGS = ["-o", "--endpoint", "--tls", "--ca", "--access-key", "--secret-key"]


@pytest.mark.parametrize("name", FLAGS)
def test_names_and_flags_are_contracts(name: str) -> None:
    """Every promised command is there with its own flags and those of all commands."""
    command = dict(commands(app))[name]
    collection = command.assemble_argument_collection(parse_docstring=True)
    names = {option for argument in collection for option in argument.names}

    assert names >= {*FLAGS[name], *COMMON_FLAGS}


def test_every_command_has_help_with_an_example() -> None:
    """The help names the command as it is typed, every option has a meaning, every JSON a list."""
    for name, command in commands(app):
        assert f"For instance: strata {name}" in str(command.default_command.__doc__), name
        for argument in command.assemble_argument_collection(parse_docstring=True):
            assert argument.names == ("*",) or argument.parameter.help, (name, argument.names)
    assert set(JSON_KEYS) == {name for name, _ in commands(app)}


def test_the_page_is_fresh() -> None:
    """docs/cli.md is what the command tree gives; `make docs` writes it."""
    assert (ROOT / "docs" / "cli.md").read_text() == render(app)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nope"], "nope"),
        (["topic", "create"], "NAME"),
        (["topic", "create", "t", "--queues", "many"], "--queues"),
        (["topic", "create", "t", "--queues", "0"], "at least one queue"),
        (["topic", "create", "t", "--type", "ODD"], "--type"),
        (["topic", "create", "t", "--retention", "3"], "'3' is no duration"),
        (["topic", "update", "t"], "nothing to change"),
        (["group", "create", "g", "--backoff-ms", "1", "--backoff-exp", "1,2,3"], "not both"),
        (["group", "create", "g", "--backoff-exp", "1,2"], "INITIAL_MS,MAX_MS,MULTIPLIER"),
        (["group", "create", "g", "--max-attempts", "0"], "at least once"),
        (["group", "update", "g"], "nothing to change"),
        (["group", "reset", "g", "--to", "never"], "'never' is no time"),
        (["message", "send", "t", "--body", "b", "--property", "x"], "KEY=VALUE"),
        (["message", "receive", "t", "--group", "g", "--count", "0"], "at least one"),
        (["message", "receive", "t", "--group", "g", "--invisible", "1s"], "at least 10s"),
        (["message", "show", "t"], "one of --id, --key and --offset"),
        (["message", "show", "t", "--id", "a", "--key", "b"], "one of --id, --key and --offset"),
        (["message", "show", "t", "--offset", "7"], "QUEUE:OFFSET"),
        (["topic", "list", "--ca", "/nowhere.pem"], "/nowhere.pem: No such file"),
        (["topic", "list", "--endpoint", "127.0.0.1:1", "--timeout", "2s"], "127.0.0.1:1"),
        (["log", "verify", "/nowhere"], "/nowhere"),
        (["log", "dump", "/nowhere"], "/nowhere"),
        (["log", "repair", "/nowhere", "--yes"], "/nowhere"),
        (["config", "show", "--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
        (["standalone", "--data-dir", "/x", "--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    """Whatever is wrong: exit code 1, nothing on stdout, one line on stderr that says what."""
    assert run(arguments) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("strata: ")
    assert output.err.count("\n") == 1
    assert reason in output.err
    assert "Traceback" not in output.err


def test_local_configuration_is_shown_without_a_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's value and the environment's value both show, as JSON and as TOML."""
    file = tmp_path / "strata.toml"
    file.write_text("[nameserver]\nmax_topics = 7\n")
    monkeypatch.setenv("STRATA_NAMESERVER_MAX_NODES", "3")
    assert run(["config", "show", "--config", str(file), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert run(["config", "show", "--config", str(file)]) == 0

    assert (shown["nameserver"]["max_topics"], shown["nameserver"]["max_nodes"]) == (7, 3)
    assert "max_topics = 7\n" in capsys.readouterr().out


@pytest.mark.parametrize("made", ["other.log", "storage/log/", "nameserver/log/notes.log"])
def test_a_folder_without_a_log_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: str
) -> None:
    """A wrong path in a nightly job must not be green: logs of others are no CommitLogs."""
    path = tmp_path / made
    (path if made.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not made.endswith("/"):
        path.write_text("something else\n")
    for command in ("verify", "dump", "repair"):
        assert run(["log", command, str(tmp_path)]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert "holds no CommitLog" in output.err
        assert output.err.count("\n") == 1
