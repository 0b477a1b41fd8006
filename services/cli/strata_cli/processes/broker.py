"""`strata broker`: a broker in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from strata_angelia.factory import open_server
from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import BrokerNetwork, cluster_network
from strata_cli.processes.cluster import ProcessMember, Surroundings
from strata_cli.processes.cluster import run as run_process
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.edges import BrokerEdge
from strata_cli.processes.place import ALONE, MachinePlace
from strata_cli.processes.plugins import broker_plugins
from strata_cli.processes.standalone_config import window_options, with_remoting_defaults
from strata_runtime.runtime import Runtime


def run(config: ClusterConfig, data_dir: Path, place: MachinePlace = ALONE) -> None:
    """Run a broker until it is told to stop.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    run_process(FolderRole.BROKER, config, data_dir, build, place)


def build(around: Surroundings) -> ProcessMember:
    """Return a broker of the cluster that the configuration names."""
    config, folder = around.config, around.folder
    host = around.advertised_host
    nameservers, seeds = around.nameservers(), config.cluster.storage_seeds
    place, tls_folder = around.place, folder.tls
    if place.shared_folder is not None:
        tls_folder = place.shared_folder / "tls"
    ports = BrokerEdge(
        config, tls_folder, host, metrics=around.metrics, is_port_shared=place.count > 1
    )
    network = _network(around, nameservers, seeds)
    if place.is_supervised and network.peers_on_client_port:
        network = replace(network, peer_edge=ports.new_peer_edge(config.broker.peer_port))
    broker = BrokerApp(
        BrokerIdentity(
            folder.identity.broker_node_id,
            around.boot_id,
            host,
            rack=config.cluster.rack,
            machine=place.machine,
        ),
        with_remoting_defaults(config),
        ports.edge,
        network=network,
        runtime=Runtime(
            *(around.clock, random.random, around.metrics, around.on_fatal, around.tracer),
            audit=around.audit,
        ),
        shown_config=config,
        windows=window_options(config),
        plugins=broker_plugins(config.plugins),
    )
    return ProcessMember(
        broker,
        (BrokerStartError,),
        lambda: {
            "grpc": around.advertised(broker.port),
            "node": folder.identity.broker_node_id,
            **ports.shown(),
            **broker.shown(),
        },
        partial(_join, around, nameservers, seeds),
        broker.health,
    )


def _network(
    around: Surroundings, nameservers: Sequence[str], seeds: Sequence[str]
) -> BrokerNetwork:
    config, node, certificate = around.config, around.config.node, around.certificate
    network = cluster_network(
        nameservers,
        seeds,
        config.storage_client,
        config.angelia,
        around.cluster,
        tls=around.tls,
    )
    if around.shared is not None:
        network = replace(network, metadata_channels=around.open_channel)
    if certificate is None:
        return network
    server = open_server(
        node.host,
        config.broker.peer_tls_port,
        options=config.angelia.options(),
        metrics=around.metrics,
        cluster=around.cluster,
        tls=around.tls,
    )
    return replace(network, peer_server=server, health=certificate.health)


async def _join(around: Surroundings, nameservers: Sequence[str], seeds: Sequence[str]) -> None:
    """Find the cluster; if no nameserver answers, ask storage nodes (rule 16)."""
    wait_s = around.config.metadata.start_timeout_ms / 1_000
    await around.join(FolderRole.BROKER, (*nameservers, *seeds), wait_s)
