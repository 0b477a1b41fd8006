"""The standalone node as a process: ready line, drain, restart, kill, lock, configuration."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from strata_edge.choice import HOW_TO_GET_IT, has_native
from tests.parts.required import absent

if TYPE_CHECKING:
    from tests.integration.cli.conftest import StartNode


def test_one_ready_line_then_a_clean_end(start_node: StartNode) -> None:
    """Stdout is exactly one line, SIGTERM ends with 0, and nothing is left to say."""
    node = start_node()
    code, out, err = node.stop()

    edge = "edge=(native|grpcio native_edge=make_edge)"
    ports = r"grpc=127\.0\.0\.1:\d+ data=\S+ admin=127\.0\.0\.1:\d+"
    line = rf"ready {ports} {edge} access_control=off console=127\.0\.0\.1:\d+ pid=\d+\n"
    assert re.fullmatch(line, node.ready_line), node.ready_line
    assert (code, out, err) == (0, "", "")
    print(f"start to ready {node.start_s:.2f} s")


def test_operators_have_a_port_of_their_own(start_node: StartNode) -> None:
    """Both ports serve operators on loopback; only the one for clients serves clients."""
    node = start_node()
    admin = dict(part.split("=", 1) for part in node.ready_line.split()[1:])["admin"]
    assert node.strata("topic", "create", "here", "--endpoint", admin).returncode == 0
    for endpoint in (admin, node.endpoint):
        listed = node.strata("topic", "list", "--endpoint", endpoint)
        assert "here" in listed.stdout
    sent = node.strata("message", "send", "here", "--body", "x", "--endpoint", admin)
    assert sent.returncode != 0
    assert f"{admin} does not offer this" in sent.stderr
    assert node.strata("message", "send", "here", "--body", "x").returncode == 0


def test_flags_of_other_servers_are_a_standalones_too(start_node: StartNode) -> None:
    """A standalone takes them for its log, its plugins and the port of its metrics."""
    node = start_node("--log-level", "info", "--plugins", "kv", "--metrics-port", "0")
    node.json("kv", "put", "a", "1", "--table", "t")
    assert node.json("kv", "get", "a", "--table", "t")["value"] == "1"
    shown = node.json("config", "show")
    assert (shown["node"]["log_level"], shown["plugins"]) == ("info", ["kv"])
    _, _, logged = node.stop()
    assert '"level": "info"' in logged


def test_each_edge_is_named_and_serves(start_node: StartNode) -> None:
    """`--edge` decides which of the two serves; with either a message comes back."""
    if not has_native():
        absent(f"the native edge: {HOW_TO_GET_IT}")
    topic_of = {}
    for kind in ("native", "grpcio"):
        node = start_node("--edge", kind)
        assert f" edge={kind} " in node.ready_line
        topic_of[kind] = node.json("topic", "create", f"by-{kind}")["topic_id"]
        sent = node.json("message", "send", f"by-{kind}", "--body", kind)["message_id"]
        found = node.json("message", "show", f"by-{kind}", "--id", sent)["messages"]
        assert [message["message_id"] for message in found] == [sent]
        assert node.stop()[0] == 0
    assert topic_of["native"] != topic_of["grpcio"]


def test_a_restart_keeps_topics_groups_and_messages(start_node: StartNode) -> None:
    """After a kill and after a clean stop everything that was answered is there."""
    node = start_node()
    topic = node.json("topic", "create", "kept", "--queues", "2")
    group = node.json("group", "create", "kept-g")
    sent = [
        node.json("message", "send", "kept", "--body", str(number))["message_id"]
        for number in range(3)
    ]
    for end in (signal.SIGKILL, signal.SIGTERM):
        node.stop(end)
        node = start_node()
        assert node.ready_line.startswith("ready "), node.process.stderr
        assert node.json("topic", "list")["topics"] == [topic]
        assert node.json("group", "list")["groups"] == [group]
        for message_id in sent:
            found = node.json("message", "show", "kept", "--id", message_id)["messages"]
            assert [message["message_id"] for message in found] == [message_id]
    assert node.json("topic", "create", "next")["topic_id"] > topic["topic_id"]
    assert json.loads((node.data_dir / "identity.json").read_text())["format_version"] == 1


def test_the_metadata_rows_come_back_from_the_log(start_node: StartNode) -> None:
    """Deleting nameserver/meta loses nothing: the log is the truth."""
    node = start_node()
    topic = node.json("topic", "create", "kept")
    node.stop()
    shutil.rmtree(node.data_dir / "nameserver" / "meta")
    node = start_node()

    assert node.json("topic", "list")["topics"] == [topic]


def test_a_data_folder_has_one_process(start_node: StartNode) -> None:
    """A second node on the same folder ends at once with one line that names the first."""
    first = start_node()
    second = start_node()
    code, out, err = second.process.wait(30), second.process.stdout, second.process.stderr
    assert out is not None
    assert err is not None

    assert (code, second.ready_line) == (1, "")
    assert re.fullmatch(
        rf"strata: data folder \S+ is in use by process {first.process.pid}\n", err.read()
    )


def test_a_taken_port_is_one_line(start_node: StartNode, tmp_path: Path) -> None:
    """The port is named, the exit code is 1, and the folder is free afterwards."""
    node = start_node()
    port = node.endpoint.rpartition(":")[2]
    other = tmp_path / "other"
    done = subprocess.run(
        [*node.process.args[:3], "standalone", "--data-dir", str(other), "--grpc-port", port],  # type: ignore[index]
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("strata: cannot start: "), done.stderr
    assert done.stderr.count("\n") == 1


def test_configuration_from_file_and_environment(start_node: StartNode, tmp_path: Path) -> None:
    """Limits of the file and of the environment hold in the running node."""
    file = tmp_path / "strata.toml"
    file.write_text("[nameserver]\nmax_queues_per_topic = 4\ndefault_queue_count = 2\n")
    node = start_node("--config", str(file), STRATA_NAMESERVER_MAX_TOPICS="1")

    refused = node.strata("topic", "create", "t", "--queues", "5")
    assert "allowed are 1 to 4 (nameserver.max_queues_per_topic)" in refused.stderr
    node.json("topic", "create", "t", "--queues", "4")
    refused = node.strata("topic", "create", "u", "--queues", "1")
    assert "there are 1 topics already (nameserver.max_topics)" in refused.stderr


def test_bad_configuration_is_one_line(start_node: StartNode) -> None:
    """A misspelt key in the environment ends the start, named."""
    node = start_node(STRATA_NAMESERVER_MAX_TOPIX="1")
    assert node.process.wait(30) == 1
    assert node.process.stderr is not None

    assert node.process.stderr.read() == (
        "strata: STRATA_NAMESERVER_MAX_TOPIX: no such key (environment)\n"
    )


def test_tls_and_plaintext_on_one_port(start_node: StartNode) -> None:
    """The same command works with --ca and without; a wrong certificate is one line."""
    node = start_node()
    certificate = node.data_dir / "tls" / "server.crt"
    node.json("topic", "create", "t")

    assert node.json("topic", "list", "--ca", str(certificate)) == node.json("topic", "list")
    refused = node.strata("topic", "list", "--tls", "--timeout", "3s")
    assert refused.returncode == 5
    assert refused.stderr.count("\n") == 1


def test_logs_are_read_without_a_server(start_node: StartNode) -> None:
    """`log verify` and `log dump` read both CommitLogs; a flipped byte is found."""
    node = start_node()
    node.json("topic", "create", "t")
    for number in range(5):
        node.json("message", "send", "t", "--body", str(number) * 500)
    assert node.stop()[0] == 0
    clean = node.json("log", "verify", str(node.data_dir))
    frames = node.strata("log", "dump", str(node.data_dir / "storage" / "log"), "-o", "json")
    kinds = [json.loads(line)["kind"] for line in frames.stdout.splitlines()]
    assert clean["ok"] is True
    assert len(clean["logs"]) == 2
    assert kinds.count("entry") >= 7

    segment = next((node.data_dir / "storage" / "log").glob("*.log"))
    frame = next(
        each
        for each in map(json.loads, frames.stdout.splitlines())
        if each["kind"] == "entry" and each["payload_bytes"] > 500
    )
    with segment.open("r+b") as file:
        file.seek(frame["position"] + 200)
        byte = file.read(1)
        file.seek(frame["position"] + 200)
        file.write(bytes([byte[0] ^ 1]))
    damaged = node.strata("log", "verify", str(node.data_dir), "-o", "json")
    assert damaged.returncode == 1
    assert json.loads(damaged.stdout)["ok"] is False
    assert "damaged: " in damaged.stderr


def test_the_demonstration(tmp_path: Path) -> None:
    """`make run ARGS=--once`: real messages go out and come back, and it ends with 0."""
    from sys import executable

    done = subprocess.run(
        [executable, "-m", "strata_cli.demo", "--once", "--data-dir", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\nsent ") == 3
    assert "All 3 messages came back." in done.stdout
    assert "Try it" not in done.stdout, "the node is gone"
