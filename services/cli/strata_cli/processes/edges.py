"""The ports of a broker, for clients and for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from strata_broker.servicers import admin_rpc, rocketmq_rpc
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.standalone_config import StandaloneConfig
from strata_edge.choice import choose_edge, shown_choice
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.operator_port import OperatorPort
from strata_edge.options import EdgeOptions
from strata_edge.ports import Edge
from strata_runtime.errors import ConfigError
from strata_runtime.listening import endpoint_of, is_loopback
from strata_runtime.metrics import Metrics

_SERVICES = (admin_rpc.SERVICE, rocketmq_rpc.SERVICE)
_SHARED_RPCS = tuple(
    # Spark's data source, which reads messages from wherever it runs.
    f"/{admin_rpc.SERVICE}/{rpc}"
    for rpc in ("ListQueueSpans", "ScanQueue")
)
_MAX_CONNECTIONS = 256


class BrokerEdge:
    """The edge of a broker process, not yet started.

    Attributes:
        edge: serves both ports.

    Args:
        config: of the process.
        tls_folder: where a self-signed certificate is kept.
        host: name in that certificate.
        metrics: of the port for clients.
        is_port_shared: other workers listen on the port for clients, too.

    Raises:
        ConfigError: the configuration cannot be used.
    """

    def __init__(
        self,
        config: StandaloneConfig,
        tls_folder: Path,
        host: str,
        *,
        metrics: Metrics,
        is_port_shared: bool = False,
    ) -> None:
        options = edge_options(config, tls_folder, host, is_port_shared=is_port_shared)
        self._options = options
        adapter, node = config.edge.adapter, config.node
        clients = choose_edge(adapter, options, metrics)
        self._kind = clients.kind
        self._admin_host = node.admin_host
        self.edge = OperatorPort(
            clients,
            # Not counted: the numbers of the edge are about clients.
            choose_edge(adapter, operator_options(config, options), Metrics.disabled()),
            services=_SERVICES,
            shared_rpcs=_SHARED_RPCS,
            # Where anybody may do anything, another port keeps nobody out.
            on_client_port=is_loopback(node.host) or not config.access_control.is_on,
        )

    def new_peer_edge(self, port: int) -> Edge:
        """Return an edge for the calls of other brokers to a worker, not yet started.

        Its numbers are not shown: they would mix with those of clients.
        """
        options = replace(
            self._options, port=port, front=False, tls_only=False, is_port_shared=False
        )
        return GrpcioEdge(options, Metrics.disabled())

    def shown(self) -> Mapping[str, object]:
        """Return what the line of a server that is ready says about its ports."""
        admin = endpoint_of(self._admin_host, self.edge.operator_port)
        return {"admin": admin, **shown_choice(self._kind)}


def operator_options(config: StandaloneConfig, clients: EdgeOptions) -> EdgeOptions:
    """Return the options of the port for operators.

    Plaintext on loopback, so that the command finds it as it is; TLS only elsewhere.

    Args:
        config: of the process.
        clients: options of the port for clients.

    Raises:
        ConfigError: the port would be plaintext where others reach it.
    """
    node = config.node
    here_only = is_loopback(node.admin_host)
    if not here_only and clients.certificate is None and not config.access_control.insecure:
        raise ConfigError(
            f"the port for operators listens on {node.admin_host or 'all addresses'} and edge.tls "
            "is off: set node.admin_host to a loopback address, or edge.tls, or give --insecure"
        )
    with_tls = not here_only and clients.certificate is not None
    return replace(
        clients,
        host=node.admin_host,
        port=node.admin_port,
        is_port_shared=False,
        front=with_tls,
        certificate=clients.certificate if with_tls else None,
        tls_only=with_tls,
        max_connections=_MAX_CONNECTIONS,
        max_connections_per_address=_MAX_CONNECTIONS,
    )
