"""`strata broker`: a broker in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from strata_broker.app import BrokerApp, BrokerIdentity, BrokerStartError
from strata_broker.storage_client.channels import cluster_network
from strata_cli.processes.cluster import Member, Surroundings
from strata_cli.processes.cluster import run as run_process
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import Role
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.standalone_config import window_options
from strata_edge.grpcio_edge import GrpcioEdge


def run(config: ClusterConfig, data_dir: Path) -> None:
    """Run a broker until it is told to stop.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    run_process(Role.BROKER, config, data_dir, build)


def build(around: Surroundings) -> Member:
    """Return a broker of the cluster that the configuration names."""
    config, folder = around.config, around.folder
    host = around.advertised_host
    nameservers, seeds = around.nameservers(), config.cluster.storage_seeds
    network = cluster_network(
        nameservers, seeds, config.storage_client, config.angelia, around.cluster
    )
    broker = BrokerApp(
        BrokerIdentity(
            folder.identity.broker_node_id, around.boot_id, host, rack=config.cluster.rack
        ),
        config,
        GrpcioEdge(edge_options(config, folder.tls, host), around.metrics),
        network,
        around.clock,
        random.random,
        around.metrics,
        around.on_fatal,
        shown_config=config,
        tracer=around.tracer,
        windows=window_options(config),
    )
    return Member(
        broker,
        (BrokerStartError,),
        lambda: {"grpc": around.advertised(broker.port), "node": folder.identity.broker_node_id},
        partial(_join, around, nameservers, seeds),
        broker.health,
    )


async def _join(around: Surroundings, nameservers: Sequence[str], seeds: Sequence[str]) -> None:
    """Find the cluster; if no nameserver answers, ask storage nodes (rule 16)."""
    wait_s = around.config.metadata.start_timeout_ms / 1_000
    await around.join(Role.BROKER, (*nameservers, *seeds), wait_s)
