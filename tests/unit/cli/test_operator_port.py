"""Ports of a broker, and the RPCs that each of them serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata_broker.servicers import admin_rpc, messaging_rpc, rocketmq_rpc
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.edges import BrokerEdge, operator_options
from strata_edge.operator_port import OperatorPort
from strata_edge.options import EdgeOptions
from strata_edge.ports import CallInfo
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics
from strata_runtime.tls import self_signed
from strata_testing.broker.fake_edge import FakeEdge

ADMIN = f"/{admin_rpc.SERVICE}/DeleteTopic"
SCAN = f"/{admin_rpc.SERVICE}/ScanQueue"
ROCKETMQ = f"/{rocketmq_rpc.SERVICE}/DeleteTopic"
SEND = f"/{messaging_rpc.SERVICE}/SendMessage"
ROUTE = f"/{messaging_rpc.SERVICE}/QueryRoute"
TABLE = "/strata.kv.v1.KvService/Get"
HEALTH = "/grpc.health.v1.Health/Check"
ALL = (ADMIN, SCAN, ROCKETMQ, ROUTE, TABLE)


async def unary(data: bytes, info: CallInfo) -> bytes:
    return data


async def talk(requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def served(*, on_client_port: bool) -> tuple[set[str], set[str]]:
    """Return what each port serves of all that a broker adds."""
    clients, operators = FakeEdge(), FakeEdge()
    edge = OperatorPort(
        clients,
        operators,
        services=(admin_rpc.SERVICE, rocketmq_rpc.SERVICE),
        shared_rpcs=(SCAN,),
        on_client_port=on_client_port,
    )
    for path in (*ALL, HEALTH):
        edge.add_unary(path, unary)
    edge.add_stream(f"/{messaging_rpc.SERVICE}/Telemetry", talk)
    return {*clients.unary, *clients.streams}, {*operators.unary, *operators.streams}


async def test_operators_have_their_own_port() -> None:
    """Clients reach neither of the operators' services; Spark's reads stay; health is on both."""
    clients, operators = await served(on_client_port=False)
    assert clients == {SCAN, ROUTE, TABLE, HEALTH, f"/{messaging_rpc.SERVICE}/Telemetry"}
    assert operators == {ADMIN, SCAN, ROCKETMQ, HEALTH}


async def test_a_port_for_this_machine_serves_operators_too() -> None:
    """Nothing of clients is on the operators' port."""
    clients, operators = await served(on_client_port=True)
    assert clients == {*ALL, HEALTH, f"/{messaging_rpc.SERVICE}/Telemetry"}
    assert operators == {ADMIN, SCAN, ROCKETMQ, HEALTH}


@pytest.mark.parametrize(
    ("host", "mode", "together"),
    [
        ("127.0.0.1", "off", True),
        ("127.0.0.1", "on", True),
        ("192.0.2.1", "on", False),
        ("192.0.2.1", "off", True),
    ],
)
def test_the_address_decides(tmp_path: Path, host: str, mode: str, together: bool) -> None:
    """Where others reach the port for clients and are checked, operators are not served there."""
    config = ClusterConfig().with_flags(
        node={"host": host}, access_control={"mode": mode}, edge={"adapter": "grpcio"}
    )
    ports = BrokerEdge(config, tmp_path, "127.0.0.1", metrics=Metrics.disabled())
    assert len(ports.edge.edges_of(ADMIN)) == (2 if together else 1)
    assert len(ports.edge.edges_of(SCAN)) == 2
    assert len(ports.edge.edges_of(SEND)) == 1


def test_the_operators_port_is_plaintext_on_loopback_only(tmp_path: Path) -> None:
    """On another address it speaks TLS only, and without a certificate it does not start."""
    clients = EdgeOptions(certificate=self_signed(tmp_path))
    config = ClusterConfig()
    here = operator_options(config, clients)
    assert (here.host, here.front, here.certificate) == ("127.0.0.1", False, None)
    config = config.with_flags(node={"admin_host": "192.0.2.1", "admin_port": 7})
    away = operator_options(config, clients)
    assert (away.host, away.port, away.tls_only) == ("192.0.2.1", 7, True)
    assert away.certificate == clients.certificate
    with pytest.raises(ConfigError, match="the port for operators listens on 192"):
        operator_options(config, EdgeOptions())
