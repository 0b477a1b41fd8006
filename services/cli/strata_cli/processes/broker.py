"""`strata broker`: a broker in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import cluster_network
from strata_cli.processes.cluster import ProcessMember, Surroundings
from strata_cli.processes.cluster import run as run_process
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.plugins import broker_plugins
from strata_cli.processes.standalone_config import window_options
from strata_edge.choice import choose_edge, shown_choice
from strata_runtime.runtime import Runtime


def run(config: ClusterConfig, data_dir: Path) -> None:
    """Run a broker until it is told to stop.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    run_process(FolderRole.BROKER, config, data_dir, build)


def build(around: Surroundings) -> ProcessMember:
    """Return a broker of the cluster that the configuration names."""
    config, folder = around.config, around.folder
    host = around.advertised_host
    nameservers, seeds = around.nameservers(), config.cluster.storage_seeds
    network = cluster_network(
        nameservers, seeds, config.storage_client, config.angelia, around.cluster
    )
    edge = choose_edge(config.edge.adapter, edge_options(config, folder.tls, host), around.metrics)
    broker = BrokerApp(
        BrokerIdentity(
            folder.identity.broker_node_id, around.boot_id, host, rack=config.cluster.rack
        ),
        config,
        edge,
        network=network,
        runtime=Runtime(
            around.clock, random.random, around.metrics, around.on_fatal, around.tracer
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
            **shown_choice(edge.kind),
        },
        partial(_join, around, nameservers, seeds),
        broker.health,
    )


async def _join(around: Surroundings, nameservers: Sequence[str], seeds: Sequence[str]) -> None:
    """Find the cluster; if no nameserver answers, ask storage nodes (rule 16)."""
    wait_s = around.config.metadata.start_timeout_ms / 1_000
    await around.join(FolderRole.BROKER, (*nameservers, *seeds), wait_s)
