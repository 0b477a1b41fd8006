"""Any start that fails ends with one line `strata: REASON` that names what it is about."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_cli.local.plan import free_ports
from strata_cli.processes.data_folder import FolderRole
from strata_runtime.authority import issue, make_authority
from strata_runtime.roles import PeerRole
from tests.parts.ports import free_port

STRATA = (sys.executable, "-m", "strata_cli.main")
NAMESERVERS = "--nameservers=127.0.0.1:{free}"
SERVERS = {
    "standalone": ["standalone", "--data-dir={dir}", "--grpc-port=0"],
    "nameserver": ["nameserver", "--data-dir={dir}", NAMESERVERS, "--port={free}"],
    "storage": ["storage", "--data-dir={dir}", NAMESERVERS],
    "broker": ["broker", "--data-dir={dir}", NAMESERVERS, "--grpc-port=0"],
    "forwarder": ["forwarder", "--listen=127.0.0.1:0", "--broker=127.0.0.1:1"],
}
PORTS = {
    "standalone": ["--grpc-port"],
    "nameserver": ["--port", "--nameservers=127.0.0.1"],
    "forwarder": ["--listen=127.0.0.1"],
}


# They look for their nameservers first.
PORTS_OF_MEMBERS = {"storage": "--port", "broker": "--grpc-port"}


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a nameserver that runs."""
    port = next(iter(free_ports()))
    endpoint, folder = f"127.0.0.1:{port}", tmp_path_factory.mktemp("nameserver")
    process = subprocess.Popen(
        [
            *(*STRATA, "nameserver", f"--data-dir={folder}"),
            *(f"--nameservers={endpoint}", f"--port={port}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready")
        yield endpoint
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# Exit code of a command line that cannot be meant.
USAGE = 2


def failure_of(arguments: list[str | bytes], code: int = 1, **environment: str) -> str:
    """Run a command that must fail; return its one line."""
    done = subprocess.run(
        [*STRATA, *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    # Beside it stand changes of the cluster that the start made: `node.audit_log`.
    lines = done.stderr.decode().splitlines(keepends=True)
    error = "".join(line for line in lines if not line.startswith('{"component": "audit"'))
    assert (done.returncode, done.stdout) == (code, b""), error
    assert error.startswith("strata: "), error
    assert error.count("\n") == 1, error
    return error


def server(name: str, folder: Path, *more: str) -> list[str | bytes]:
    free = free_port()
    given = [each.format(dir=folder, free=free) for each in SERVERS[name]]
    changed = {each.partition("=")[0] for each in more}
    return [*(each for each in given if each.partition("=")[0] not in changed), *more]


@pytest.mark.parametrize("name", SERVERS)
def test_a_metrics_port_that_is_taken(name: str, tmp_path: Path, taken: int) -> None:
    """The line of any server has the port and what it is for."""
    error = failure_of(server(name, tmp_path / "d", f"--metrics-port={taken}"))

    assert f"cannot listen on 127.0.0.1:{taken} for metrics: another process has the port" in error


@pytest.mark.parametrize("name", PORTS)
def test_a_port_that_is_taken(name: str, tmp_path: Path, taken: int) -> None:
    """The port that others call is named."""
    options = [f"{each}{':' if '=' in each else '='}{taken}" for each in PORTS[name]]
    error = failure_of(server(name, tmp_path / "d", *options))

    assert f"cannot listen on 127.0.0.1:{taken} for " in error
    assert "another process has the port" in error


@pytest.mark.parametrize("name", PORTS_OF_MEMBERS)
def test_a_port_of_a_member_that_is_taken(
    name: str, tmp_path: Path, taken: int, nameserver: str
) -> None:
    """The port that others call is named, after the member has found its cluster."""
    options = (f"{PORTS_OF_MEMBERS[name]}={taken}", f"--nameservers={nameserver}")
    error = failure_of(server(name, tmp_path / "d", *options))

    assert f"cannot listen on 127.0.0.1:{taken} for " in error
    assert "another process has the port" in error


@pytest.mark.parametrize("name", ["standalone", "nameserver"])
def test_an_address_of_another_machine(name: str, tmp_path: Path) -> None:
    """The address is named, and that it is not here."""
    nameserver = ["--nameservers=192.0.2.9:19877", "--port=19877", "--insecure"]
    more = nameserver if name == "nameserver" else []
    error = failure_of(server(name, tmp_path / "d", "--host=192.0.2.9", *more))

    assert "cannot listen on 192.0.2.9:" in error
    assert "this machine does not have the address" in error


@pytest.mark.parametrize("name", ["standalone", "nameserver", "storage", "broker"])
def test_a_folder_and_a_file_that_are_none(name: str, tmp_path: Path) -> None:
    """A data folder that is a file, a configuration that is a folder, or no text."""
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe\x00")

    assert str(file) in failure_of(server(name, file))
    for config in (file, tmp_path):
        assert str(config) in failure_of(server(name, tmp_path / "d", f"--config={config}"))


@pytest.mark.parametrize("name", ["standalone", "nameserver", "storage", "broker", "forwarder"])
def test_a_port_that_is_none(name: str, tmp_path: Path) -> None:
    """A number that no port can have is named."""
    code = 1 if name == "forwarder" else USAGE  # the forwarder has no configuration
    error = failure_of(server(name, tmp_path / "d", "--metrics-port=99999"), code)

    assert "99999" in error or "metrics_port" in error


@pytest.mark.parametrize("broker", ["127.0.0.1", ":1", "host:port", "a:99999", "..:1"])
def test_a_broker_that_is_no_address(broker: str) -> None:
    """The forwarder does not start without the port of a broker."""
    arguments: list[str | bytes] = ["forwarder", "--listen=127.0.0.1:0", f"--broker={broker}"]

    assert "--broker" in failure_of(arguments, USAGE)


def test_a_damaged_file_of_the_node_is_named(tmp_path: Path) -> None:
    """A folder in which a file stands where a folder should is told with the file."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "storage").write_text("not a folder")

    assert str(tmp_path / "d") in failure_of(server("standalone", tmp_path / "d"))


def test_text_that_is_none() -> None:
    """An argument that is not UTF-8 ends with one line."""
    arguments: list[str | bytes] = ["message", "send", "t", "--body=b", b"--tag=\xff\xfe"]

    assert "not UTF-8" in failure_of([*arguments, "--endpoint=127.0.0.1:1"], USAGE)


def test_a_virtual_address_that_is_taken_starts_nothing(tmp_path: Path, taken: int) -> None:
    """`local up` says so before anything runs, and another address is not refused afterwards."""
    folder = tmp_path / "c"
    up: list[str | bytes] = ["local", "up", "--data-dir", str(folder)]
    error = failure_of([*up, f"--virtual-address=127.0.0.1:{taken}"])

    assert f"cannot listen on 127.0.0.1:{taken} for forwarder" in error
    assert not (folder / "nameserver-1").exists()


def test_a_wrong_configuration_is_not_remembered(tmp_path: Path) -> None:
    """The second `local up` judges its own file; one that was never served leaves nothing."""
    folder, typo = tmp_path / "c", tmp_path / "typo.toml"
    typo.write_text("[node]\ngrpc_prt = 1\n")
    up: list[str | bytes] = ["local", "up", "--data-dir", str(folder), "--wait=1ms"]

    assert "typo.toml: node.grpc_prt: unknown key" in failure_of([*up, f"--config={typo}"])
    assert not (folder / "cluster.json").exists()
    good = tmp_path / "good.toml"
    good.write_text("[node]\nlog_level = 'info'\n")
    few = ["--nameservers=1", "--storage=1", "--brokers=1", f"--config={good}"]
    assert "typo" not in failure_of([*up, "--tier=nonsense", *few])
    plan = json.loads((folder / "cluster.json").read_text())
    assert (plan["served"], plan["config"]) == (False, str(good))


@pytest.mark.parametrize("name", ["nameserver", "storage"])
def test_plaintext_for_others(name: str, tmp_path: Path) -> None:
    """A server that other machines reach needs a certificate, or must be told that it does not."""
    more = ["--nameservers=192.0.2.9:19877", "--port=19877"] if name == "nameserver" else []
    error = failure_of(server(name, tmp_path / "d", "--host=192.0.2.9", *more))

    assert f"and the {FolderRole(name).described} listens on 192.0.2.9" in error
    assert "there is no cluster certificate" in error
    assert "--cluster-certificates" in error


@pytest.mark.parametrize("name", ["nameserver", "storage", "broker"])
def test_certificates_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    """No files, another role, an end in the past, a foreign authority: one line names the file."""
    folder = tmp_path / "tls"
    given = f"--cluster-certificates={folder}"
    assert f"{folder / 'tls.crt'} does not exist" in failure_of(server(name, tmp_path / "d", given))
    make_authority(tmp_path / "ca")
    make_authority(tmp_path / "foreign")
    issue(tmp_path / "ca", folder, PeerRole.ADMIN, [])
    error = failure_of(server(name, tmp_path / "d", given))
    described = PeerRole(name).described
    assert f"{folder / 'tls.crt'} is of an admin; this process is {described}" in error
    issue(tmp_path / "ca", folder, PeerRole(name), ["127.0.0.1"], days=-1)
    error = failure_of(server(name, tmp_path / "d", given))
    assert f"{folder / 'tls.crt'} has expired on 20" in error
    issue(tmp_path / "ca", folder, PeerRole(name), ["127.0.0.1"])
    (folder / "ca.crt").write_bytes((tmp_path / "foreign" / "ca.crt").read_bytes())
    error = failure_of(server(name, tmp_path / "d", given))
    assert f"{folder / 'tls.crt'} is not signed by an authority in {folder / 'ca.crt'}" in error
    error = failure_of(server(name, tmp_path / "d", "--cluster-tls=required"))
    assert "angelia.tls is required but angelia.certificate_file is not set" in error
