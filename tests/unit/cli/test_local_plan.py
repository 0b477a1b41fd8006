"""The plan of a local cluster: names, ports, command lines, its file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from strata_cli.commands import local
from strata_cli.errors import CliError
from strata_cli.local.plan import (
    ClusterPlan,
    Member,
    PlanError,
    Role,
    free_ports,
    load,
    new_plan,
    save,
)


def ports() -> Iterator[int]:
    return count(20_000)


def plan(virtual_address: str = "") -> ClusterPlan:
    counts: dict[Role, int] = {"nameserver": 3, "storage": 3, "broker": 2}
    return new_plan(counts, ports(), virtual_address=virtual_address)


def test_names_roles_and_ports() -> None:
    """Members are numbered per role, in the order of their start, and share no port."""
    made = plan()
    assert [member.name for member in made.members] == [
        *("nameserver-1", "nameserver-2", "nameserver-3"),
        *("storage-1", "storage-2", "storage-3", "broker-1", "broker-2"),
    ]
    assert len(made.taken_ports()) == 2 * len(made.members)
    assert made.member("storage-2").role == "storage"
    with pytest.raises(CliError, match="no process named storage-9; there are nameserver-1"):
        made.member("storage-9")


def test_everybody_knows_the_nameservers_and_brokers_the_seeds() -> None:
    """Each process gets its own ports and the addresses of those it needs."""
    made = plan()
    nameservers = ",".join(member.address for member in made.of("nameserver"))
    seeds = ",".join(member.address for member in made.of("storage"))
    for member in made.members:
        arguments = made.arguments(member, Path("/data") / member.name)
        assert arguments[:2] == [member.role, f"--data-dir=/data/{member.name}"]
        assert f"--nameservers={nameservers}" in arguments
        assert f"--metrics-port={member.metrics_port}" in arguments
        own = "--grpc-port" if member.role == "broker" else "--port"
        assert f"{own}={member.port}" in arguments
        assert (f"--storage-seeds={seeds}" in arguments) is (member.role == "broker")


def test_a_small_cluster_has_as_many_replicas_as_nodes() -> None:
    """Nameservers wait for the storage nodes that are meant to be there, and not for a third."""
    for storage, expected in ((1, ["--replication-factor=1"]), (3, []), (5, [])):
        made = new_plan({"nameserver": 1, "storage": storage, "broker": 1}, ports())
        arguments = made.arguments(made.member("nameserver-1"), Path("/x"))
        assert f"--initial-storage-nodes={storage}" in arguments
        assert [each for each in arguments if each.startswith("--replication")] == expected
        grown, _ = made.with_member("storage", ports())
        assert grown.initial_storage_nodes == storage


def test_options_that_an_existing_cluster_ignores_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One who asks for five storage nodes where there are three is told."""
    there = plan("127.0.0.1:9000")
    asked: dict[Role, int | None] = {"nameserver": None, "storage": 3, "broker": 2}
    local._tell_unused(there, asked, "")
    local._tell_unused(there, asked, "127.0.0.1:9000")
    assert capsys.readouterr().err == ""

    local._tell_unused(there, asked | {"storage": 5}, "127.0.0.1:9001")
    assert capsys.readouterr().err.splitlines() == [
        "strata: --storage 5 is ignored: the existing cluster has 3",
        "strata: --virtual-address 127.0.0.1:9001 is ignored: the existing cluster has "
        "127.0.0.1:9000",
    ]


def test_http2_is_served_where_it_is_called() -> None:
    """Storage nodes get a second port, brokers are told to use it; a later node gets one too."""
    made = new_plan({"storage": 1, "broker": 1}, ports(), storage_transport="http2")
    grown, added = made.with_member("storage", free_ports(is_free=lambda _: True))
    for member in (made.member("storage-1"), added):
        assert f"--http2-port={member.http2_port}" in grown.arguments(member, Path("/x"))
        assert member.http2_port in grown.taken_ports()
    broker = made.arguments(made.member("broker-1"), Path("/x"))
    assert "--storage-transport=http2" in broker


def test_brokers_are_told_the_codec() -> None:
    """Storage nodes understand all; a plan of before there was a choice means protobuf."""
    for codec in ("protobuf", "json", "avro"):
        made = new_plan({"storage": 1, "broker": 1}, ports(), storage_codec=codec)
        arguments = made.arguments(made.member("broker-1"), Path("/x"))
        assert f"--storage-codec={codec}" in arguments
    assert plan().storage_codec == "protobuf"


def test_a_virtual_address_is_a_forwarder_that_all_brokers_advertise() -> None:
    """The forwarder listens on the address; port 0 takes a free one."""
    made = plan("127.0.0.1:19000")
    forwarder = made.member("forwarder")
    assert forwarder.address == made.virtual_address == "127.0.0.1:19000"
    assert made.arguments(forwarder, Path("/data/forwarder")) == [
        "forwarder",
        "--listen=127.0.0.1:19000",
        "--brokers-file=/data/forwarder/brokers",
    ]
    for broker in made.of("broker"):
        assert "--virtual-address=127.0.0.1:19000" in made.arguments(broker, Path("/x"))
    assert plan("127.0.0.1:0").virtual_address != "127.0.0.1:0"
    with pytest.raises(CliError, match="write HOST:PORT"):
        plan("19000")


def test_members_come_and_go() -> None:
    """A new member has the first free number of its role and stands with its role."""
    grown, fourth = plan().with_member("storage", free_ports(is_free=lambda _: True))
    assert fourth.name == "storage-4"
    assert [member.name for member in grown.of("storage")][-1] == "storage-4"
    assert grown.members.index(fourth) < grown.members.index(grown.member("broker-1"))
    assert grown.without("storage-4") == plan()
    _, later = plan().with_member("storage", free_ports(is_free=lambda _: True), ["storage-4"])
    assert later.name == "storage-5", "the folder of a removed member is not used again"


def test_free_ports_are_distinct_and_free() -> None:
    """A taken or used port is left out; when there is none left, the error says so."""
    used = set(range(20_000, 31_990))
    found = free_ports({31_990}, is_free=lambda port: port not in used)
    assert {next(found) for _ in range(9)} == set(range(31_991, 32_000))
    with pytest.raises(PlanError, match="no free port"):
        next(found)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """The loaded plan is the saved one; a folder without a plan has none."""
    assert load(tmp_path) is None
    made = plan("127.0.0.1:19000")
    save(tmp_path, made)
    assert load(tmp_path) == made


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"members": [{"name": 1}]}'])
def test_a_damaged_plan_is_named(tmp_path: Path, text: str) -> None:
    """The error says which file cannot be read."""
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(PlanError, match=r"cluster.json is damaged"):
        load(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A plan of a later version is not guessed at."""
    save(tmp_path, ClusterPlan((Member("broker-1", "broker", 1),)))
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))
    with pytest.raises(PlanError, match="format 2, this version reads 1"):
        load(tmp_path)


def test_a_port_that_was_given_out_is_nobody_elses() -> None:
    """Its server comes up later: others look elsewhere until then, and it can listen."""
    port = next(free_ports())
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port
