"""The command tree: contracts of names and flags, help, errors as one line, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_cli.errors import EXIT_STATUS
from strata_cli.main import app, run
from strata_cli.options import Common
from strata_cli.output import show
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
    "topic list-lite": ["--limit", "--page"],
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
    ("arguments", "reason", "code"),
    [
        (["nope"], "nope", 2),
        (["topic", "create"], "NAME", 2),
        (["topic", "create", "t", "--queues", "many"], "--queues", 2),
        (["topic", "create", "t", "--queues", "0"], "at least one queue", 2),
        (["topic", "create", "a", "b"], "unexpected argument 'b'", 2),
        (["topic", "list", "--endpoint", "localhost:x"], "write HOST:PORT", 2),
        (["message", "send", "t"], "--body or --file", 2),
        (["message", "send", "t", "--file", "/nowhere"], "/nowhere: No such file", 1),
        (["topic", "create", "t", "--type", "ODD"], "--type", 2),
        (["topic", "create", "t", "--retention", "3"], "'3' is not a duration", 2),
        (["topic", "update", "t"], "nothing to change", 2),
        (["group", "create", "g", "--backoff-ms", "1", "--backoff-exp", "1,2,3"], "not both", 2),
        (["group", "create", "g", "--backoff-exp", "1,2"], "INITIAL_MS,MAX_MS,MULTIPLIER", 2),
        (["group", "create", "g", "--max-attempts", "0"], "at least once", 2),
        (["group", "update", "g"], "nothing to change", 2),
        (["group", "reset", "g", "--to", "never"], "'never' is not a time", 2),
        (["group", "reset", "g", "--to", "9" * 20], f"'{'9' * 20}' is not a time", 2),
        (["group", "reset", "g", "--to", "²"], "'²' is not a time", 2),
        (["group", "reset", "g", "--to", "0001-01-01T00:00:00"], "is not a time", 2),
        (["group", "reset", "g", "--topic", "t", "--offset", "9" * 20], "out of range", 2),
        (["group", "create", "g", "--max-attempts", "9" * 11], f"{'9' * 11} is out of range", 2),
        (["group", "create", "g", "--backoff-ms", "inf"], "'inf' is not a list of numbers", 2),
        (["group", "create", "g", "--backoff-exp", "1,2,nan"], "is not a list of numbers", 2),
        (["topic", "create", "t", "--queues", "9" * 11], f"{'9' * 11} is out of range", 2),
        (["topic", "create", "t", "--retention", "9" * 400 + "d"], "is too long", 2),
        (["topic", "list", "--timeout", "200000d"], "'200000d' is too long", 2),
        (["node", "drain", "n", "--wait", "9" * 400], "is too long", 2),
        (["message", "send", "t", "--body", "b", "--priority", "9" * 11], "out of range", 2),
        (["bench", "send", "t", "--rate", "nan"], "--rate and --message-groups are 0 or more", 2),
        (["bench", "send", "t", "--duration", "0s"], "--duration 0s: give more, or --count", 2),
        (["probe", "--host", "a..b"], "a..b:5557: write a host", 2),
        (["probe", "--port", "99999"], "1 to 65535", 2),
        (["topic", "list", "--namespace", "é"], "--namespace: it may only have ASCII", 2),
        (["topic", "list", "--access-key", "a\nb"], "--access-key: it may only have ASCII", 2),
        (["log", "dump", "/tmp", "--limit", "-1"], "--limit -1: give 0 or more", 2),
        (["kv", "list", "--table", "t", "--limit", "-1"], "at least one item", 2),
        (["kv", "watch", "--table", "t", "--count", "-1"], "at least one change", 2),
        (["kv", "get", "k", "--table", "t", "--endpoint", "127.0.0.1:1"], "127.0.0.1:1", 5),
        (["message", "send", "t", "--body", "b", "--property", "x"], "KEY=VALUE", 2),
        (["message", "receive", "t", "--group", "g", "--count", "0"], "at least one", 2),
        (["message", "receive", "t", "--group", "g", "--invisible", "1s"], "at least 10s", 2),
        (["message", "show", "t"], "one of --id, --key and --offset", 2),
        (["message", "show", "t", "--id", "a", "--key", "b"], "one of --id, --key and --offset", 2),
        (["message", "show", "t", "--offset", "7"], "QUEUE:OFFSET", 2),
        (["topic", "list", "--ca", "/nowhere.pem"], "/nowhere.pem: No such file", 1),
        (["topic", "list", "--endpoint", "127.0.0.1:1", "--timeout", "2s"], "127.0.0.1:1", 5),
        (["log", "verify", "/nowhere"], "/nowhere", 1),
        (["log", "dump", "/nowhere"], "/nowhere", 1),
        (["log", "repair", "/nowhere", "--yes"], "/nowhere", 1),
        (["config", "show", "--config", "/nowhere.toml"], "/nowhere.toml: No such file", 1),
        (["standalone", "--data-dir", "/x", "--config", "/nowhere.toml"], "/nowhere.toml", 1),
    ],
)
def test_an_error_is_one_line_and_its_kind_an_exit_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str, code: int
) -> None:
    """Each error is an exit code, nothing on stdout, and one line on stderr that tells it."""
    assert run(arguments) == code

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("strata: ")
    assert output.err.count("\n") == 1
    assert reason in output.err
    assert "Traceback" not in output.err

    assert run([*arguments, "-o", "json"]) == code
    told = json.loads(capsys.readouterr().err)
    assert set(told) == {"error", "code", "exit_code"}
    assert (told["exit_code"], EXIT_STATUS[told["code"]]) == (code, code)
    assert reason in told["error"]


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


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A document with `Infinity` is none that other programs read."""
    file = tmp_path / "strata.toml"
    file.write_text("[autoscaler]\nmax_forecast_ratio = inf\n")
    assert run(["config", "show", "--config", str(file), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown["autoscaler"]["max_forecast_ratio"] is None
    assert shown["autoscaler"]["read_interval_ms"] == 5_000


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


@pytest.mark.parametrize("server", ["standalone", "nameserver", "broker", "forwarder", "storage"])
def test_the_help_of_a_server_shows_no_options_of_clients(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    """They are taken, as everywhere, and would do nothing there."""
    assert run([server, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--data-dir" in shown or "--listen" in shown
    assert not [option for option in ("--endpoint", "--timeout", "--ca ") if option in shown]


def test_options_and_commands_are_shown_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """How to connect stands apart from what a command does; servers apart from what they serve."""
    assert run(["topic", "show", "--help"]) == 0
    assert "Connection" in capsys.readouterr().out
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    groups = ("Run", "Topics and messages", "The cluster", "Files")
    assert [shown.index(group) for group in groups] == sorted(map(shown.index, groups))


@pytest.mark.parametrize(
    "command", ["topic delete", "group delete", "group reset", "kv drop", "node remove"]
)
def test_what_destroys_can_be_shown_only_and_asks(command: str) -> None:
    """The flags are contracts."""
    found = dict(commands(app))[command]
    names = {name for each in found.assemble_argument_collection() for name in each.names}
    assert {"--yes", "--dry-run"} <= names


@pytest.mark.parametrize("command", ["topic", "group", "node"])
def test_ls_is_list(command: str) -> None:
    """Two names of one command; the page shows one."""
    assert app[command]["ls"] is app[command]["list"]
    assert f"{command} ls" not in dict(commands(app))


@pytest.mark.parametrize(
    ("result", "rows", "shown"),
    [
        ({"topics": [{"namespace": "", "name": "a"}, {"name": "b\x1b"}]}, "topics", "a\nb\\x1b\n"),
        ({"raft_groups": [{"raft_group": 3, "leader": "s1"}]}, "raft_groups", "3\n"),
        ({"messages": [{"message_id": "01", "topic": "t"}]}, "messages", "01\n"),
        ({"deleted": "orders"}, "", "orders\n"),
        ({"topics": []}, "topics", ""),
    ],
)
def test_names_alone(
    result: dict[str, object], rows: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is for a loop in a shell: one name per line and nothing else."""
    show(result, Common(output="name"), rows=rows)
    assert capsys.readouterr().out == shown


def test_errors_of_yaml_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads YAML reads JSON, too."""
    assert run(["topic", "update", "t", "-o", "yaml"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage"
