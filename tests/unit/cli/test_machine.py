"""Machines of several processes: their number, ports, folders, orders, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2
from strata_cli.machine.child import Orders
from strata_cli.machine.folder import MachineFolder, has_machine
from strata_cli.machine.plan import (
    Removed,
    check_ports,
    check_removed,
    config_of,
    process_count,
    ready_fields,
    wanted,
)
from strata_cli.machine.probes import ProbeError, health_of
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole, identity_of
from strata_cli.processes.place import MachinePlace
from strata_runtime.config import load
from strata_runtime.errors import ConfigError
from strata_runtime.health import Health, Problem, Severity

STORAGE, BROKER = FolderRole.STORAGE, FolderRole.BROKER


def config(**environment: str) -> ClusterConfig:
    variables = {f"STRATA_{key.upper()}": value for key, value in environment.items()}
    return load(ClusterConfig, None, variables)


@pytest.mark.parametrize(
    ("asked", "count"), [("1", 1), ("7", 7), ("auto", 4)], ids=["one", "some", "auto"]
)
def test_the_number_of_processes(asked: str, count: int) -> None:
    """`auto` is one per core; the configuration and the environment may say it."""
    settings = config(broker_workers=asked, storage_shards=asked)

    assert process_count(wanted(settings, BROKER), 4) == count
    assert process_count(wanted(settings, STORAGE), 4) == count


@pytest.mark.parametrize("asked", ["0", "-1", "257", "many"])
def test_an_impossible_number_is_refused(asked: str) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match="shards"):
        config(storage_shards=asked)


def test_shards_listen_on_ports_that_follow_each_other() -> None:
    """The first has the configured ports; any free port stays any free port."""
    settings = config(node_storage_port="7000", node_storage_http2_port="7100")
    nodes = [config_of(settings, STORAGE, number, 8081).node for number in range(3)]
    free = config_of(config(node_storage_port="0"), STORAGE, 2, 8081).node

    assert [node.storage_port for node in nodes] == [7000, 7001, 7002]
    assert [node.storage_http2_port for node in nodes] == [7100, 7101, 7102]
    assert (free.storage_port, free.storage_http2_port) == (0, None)


def test_workers_share_the_port_for_clients_only() -> None:
    """Peers have a port each; metrics are served on any port, and only if the machine has one."""
    settings = config(broker_peer_port="9000", node_metrics_port="5557")
    workers = [config_of(settings, BROKER, number, 28_081) for number in range(2)]

    assert [worker.node.grpc_port for worker in workers] == [28_081, 28_081]
    assert [worker.broker.peer_port for worker in workers] == [9000, 9001]
    assert [worker.node.metrics_port for worker in workers] == [0, 0]
    assert config_of(config(), BROKER, 1, 8081).node.metrics_port is None
    assert config_of(config(), BROKER, 1, 8081).broker.peer_port == 0


def test_workers_have_a_port_each_for_operators_and_for_brokers_with_certificates() -> None:
    """The first has the port that is configured, and the next ones follow; 0 is any free port."""
    settings = config(node_admin_port="9100", broker_peer_tls_port="9200")
    workers = [config_of(settings, BROKER, number, 8081) for number in range(2)]
    free = config_of(config(), BROKER, 1, 8081)

    assert [worker.node.admin_port for worker in workers] == [9100, 9101]
    assert [worker.broker.peer_tls_port for worker in workers] == [9200, 9201]
    assert (free.node.admin_port, free.broker.peer_tls_port) == (0, 0)


def test_each_process_gets_the_certificates_of_the_command() -> None:
    """Orders reach a process as a line of text and come back whole, TLS among them."""
    settings = config(
        angelia_certificate_folder="/tls", angelia_tls="optional", edge_tls_ciphers="A,B"
    )
    given = Orders(
        BROKER, config_of(settings, BROKER, 1, 8081), Path("/d"), MachinePlace("m", 2, 1)
    )
    taken = Orders.from_line(given.to_line())

    assert taken == given
    assert (taken.config.angelia.certificate_folder, taken.config.angelia.tls_mode) == (
        "/tls",
        "optional",
    )
    assert taken.config.edge.tls_ciphers == ("A", "B")


def test_each_process_has_an_audit_file_of_its_own() -> None:
    """A file that is rotated has one writer; without a file there is none."""
    settings = config(node_audit_file="/var/log/audit")
    files = [config_of(settings, BROKER, number, 8081).node.audit_file for number in range(2)]

    assert files == ["/var/log/audit.worker-0", "/var/log/audit.worker-1"]
    assert config_of(config(), STORAGE, 0, 8081).node.audit_file == ""


@pytest.mark.parametrize(
    ("role", "variables", "reason"),
    [
        (STORAGE, {"node_storage_port": "65534"}, "3 shards need ports up to 65536"),
        (
            STORAGE,
            {"node_storage_port": "7000", "node_storage_http2_port": "7002"},
            "node.storage_http2_port is 7002 and node.storage_port and the next ports overlaps",
        ),
        (
            BROKER,
            {"node_grpc_port": "8081", "broker_peer_port": "8080"},
            "broker.peer_port is 8080 and node.grpc_port overlaps",
        ),
        (
            BROKER,
            {"broker_peer_port": "9000", "broker_peer_tls_port": "9001"},
            "broker.peer_tls_port is 9001 and broker.peer_port and the next ports overlaps",
        ),
        (
            BROKER,
            {"node_admin_port": "65534"},
            "node.admin_port is 65534: 3 workers need ports up to 65536",
        ),
        (
            STORAGE,
            {"node_metrics_port": "7001", "node_storage_port": "7000"},
            "node.storage_port is 7000 and node.metrics_port overlaps",
        ),
    ],
    ids=["too high", "two transports", "peers and clients", "two peers", "operators", "metrics"],
)
def test_ports_that_collide_are_refused(
    role: FolderRole, variables: dict[str, str], reason: str
) -> None:
    """The error names both keys."""
    with pytest.raises(ConfigError, match=reason):
        check_ports(config(**variables), role, 3)


def test_ports_that_fit_are_accepted() -> None:
    """Any free port collides with nothing; workers have one port for clients together."""
    check_ports(config(node_storage_port="0", node_storage_http2_port="0"), STORAGE, 64)
    check_ports(config(node_grpc_port="65535"), BROKER, 64)


def test_each_shard_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """The machine keeps its id; the folders are below the one data folder."""
    first = MachineFolder.open(tmp_path, STORAGE)
    first.close()
    again = MachineFolder.open(tmp_path, STORAGE)
    folders = [again.process_folder(number) for number in range(2)]
    again.close()

    assert again.machine == first.machine
    assert first.machine.startswith("machine-")
    assert folders == [tmp_path / "shard-0", tmp_path / "shard-1"]
    assert has_machine(tmp_path)


def test_a_storage_node_that_was_alone_is_shard_0(tmp_path: Path) -> None:
    """Its folder, with its id and its data, stays where it is."""
    alone = DataFolder.open(tmp_path, STORAGE)
    alone.close()
    machine = MachineFolder.open(tmp_path, STORAGE)
    shard = DataFolder.open(machine.process_folder(0), STORAGE)
    shard.close()
    machine.close()

    assert shard.path == tmp_path
    assert shard.identity.storage_node_id == alone.identity.storage_node_id
    assert machine.process_folder(1) == tmp_path / "shard-1"


def test_shards_beyond_a_number_are_found_by_their_ids(tmp_path: Path) -> None:
    """A folder without an id never was a node; numbers are compared as numbers."""
    machine = MachineFolder.open(tmp_path, STORAGE)
    for number in (0, 1, 2, 10):
        DataFolder.open(machine.process_folder(number), STORAGE).close()
    (tmp_path / "shard-11").mkdir()
    machine.close()

    assert [number for number, _ in machine.beyond(2)] == [2, 10]


@pytest.mark.parametrize("owner", [FolderRole.STANDALONE, BROKER, FolderRole.NAMESERVER])
def test_a_folder_of_another_role_is_refused(tmp_path: Path, owner: FolderRole) -> None:
    """Nothing is written into it."""
    DataFolder.open(tmp_path, owner).close()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataFolderError, match=f"is that of a {owner} process"):
        MachineFolder.open(tmp_path, STORAGE)

    assert sorted(tmp_path.iterdir()) == before


def test_workers_and_shards_do_not_share_a_folder(tmp_path: Path) -> None:
    """A machine's folder has one role."""
    MachineFolder.open(tmp_path, BROKER).close()
    with pytest.raises(DataFolderError, match="is that of broker processes"):
        MachineFolder.open(tmp_path, STORAGE)


def test_a_machine_s_folder_is_opened_once(tmp_path: Path) -> None:
    """The second supervisor is told which process has it."""
    machine = MachineFolder.open(tmp_path, STORAGE)
    with pytest.raises(DataFolderError, match="is in use by process"):
        MachineFolder.open(tmp_path, STORAGE)
    machine.close()


def test_a_machine_s_folder_is_no_data_folder(tmp_path: Path) -> None:
    """A process that runs alone, and a tool, are told to name one of the folders in it."""
    MachineFolder.open(tmp_path, STORAGE).close()
    with pytest.raises(DataFolderError, match=r"name one of them, for instance .*shard-0"):
        DataFolder.open(tmp_path, FolderRole.STANDALONE)
    with pytest.raises(DataFolderError, match="name one of them"):
        identity_of(tmp_path)


def answer(replicas: int | None, *, knows_node: bool = True) -> meta_pb2.GetIdentityResponse:
    response = meta_pb2.GetIdentityResponse(cluster_id="c", knows_node=knows_node)
    if replicas is not None:
        response.replicas = replicas
    return response


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer(3), "shard 2 .node storage-2. would not be started and still has 3 replicas"),
        (answer(None), "still has replicas"),
        (None, "no nameserver answers whether it still has replicas"),
    ],
    ids=["replicas", "an earlier nameserver", "nobody answers"],
)
def test_a_shard_with_replicas_is_not_left_out(
    given: meta_pb2.GetIdentityResponse | None, reason: str
) -> None:
    """Fewer shards would take replicas out of service without a word."""
    with pytest.raises(ConfigError, match=reason):
        check_removed(STORAGE, [Removed(2, "storage-2")], {"storage-2": given})


@pytest.mark.parametrize(
    "given", [answer(0), answer(0, knows_node=False), answer(None, knows_node=False)]
)
def test_a_drained_shard_may_be_left_out(given: meta_pb2.GetIdentityResponse) -> None:
    """Whether it was removed from the nodes, too, does not matter."""
    check_removed(STORAGE, [Removed(2, "storage-2")], {"storage-2": given})


def test_orders_arrive_with_their_secrets(tmp_path: Path) -> None:
    """A process gets the whole configuration on its standard input, and nothing on disk."""
    settings = config(tier_secret_key="hidden", cluster_nameservers="a:1,b:2", node_drain_ms="77")
    place = MachinePlace("m", 3, 2, tmp_path, is_supervised=True)
    orders = Orders(STORAGE, settings, tmp_path / "shard-2", place)

    assert Orders.from_line(orders.to_line()) == orders
    assert b"hidden" in orders.to_line()
    assert "hidden" not in repr(orders)


def test_the_ready_line_of_a_machine() -> None:
    """Common fields are said once, the rest one after another, with one port for operators."""
    told = [
        {"grpc": "h:1", "node": "broker-a", "admin": "h:2", "edge": "native"},
        {"grpc": "h:1", "node": "broker-b", "admin": "h:3", "edge": "native"},
    ]

    assert ready_fields(BROKER, told, {"data": "/d"}) == {
        "grpc": "h:1",
        "node": "broker-a,broker-b",
        "admin": "h:2",
        "edge": "native",
        "workers": 2,
        "data": "/d",
    }


def test_the_health_of_a_process_is_read_back() -> None:
    """As `/ready` says it; anything else is an error."""
    problem = Problem("disk", "", "FULL", Severity.DOWN, "no room")
    said = {
        "ready": False,
        "serves": True,
        "caught_up": False,
        "reasons": [problem._asdict() | {"severity": "down"}],
    }

    assert health_of(json.dumps(said).encode()) == Health(True, False, (problem,))
    for body in (b"", b"[]", b'{"serves": true}', b'{"serves": 1, "caught_up": 1, "reasons": [1]}'):
        with pytest.raises(ProbeError):
            health_of(body)
