"""`strata nameserver`: a nameserver in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from strata_angelia.factory import open_server
from strata_cli.processes.admin_keys import admin_key_files
from strata_cli.processes.cluster import ProcessMember, Surroundings
from strata_cli.processes.cluster import run as run_process
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_nameserver.membership.formation import FormationError
from strata_nameserver.process.app import (
    NameserverApp,
    NameserverCluster,
    NameserverIdentity,
    NameserverStores,
)
from strata_runtime.errors import ConfigError
from strata_runtime.runtime import Runtime
from strata_seglog.errors import LogError
from strata_state.metadata import MetadataStoreError, MetadataSyncFailed


def run(config: ClusterConfig, data_dir: Path) -> None:
    """Run a nameserver until it is told to stop.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    run_process(FolderRole.NAMESERVER, config, data_dir, build)


def build(around: Surroundings) -> ProcessMember:
    """Return a nameserver of the cluster that the configuration names.

    Raises:
        ConfigError: its own address is not among those of the nameservers.
    """
    config, node, folder = around.config, around.config.node, around.folder
    identity, cluster = folder.identity, around.cluster
    endpoint, endpoints = around.advertised(node.nameserver_port), around.nameservers()
    if endpoint not in endpoints:
        raise ConfigError(
            f"this nameserver is {endpoint}, which is not in cluster.nameservers "
            f"({', '.join(endpoints)}); --advertise HOST says how the others reach it"
        )
    nameserver = NameserverApp(
        config.nameserver,
        NameserverIdentity(
            identity.nameserver_node_id,
            identity.metadata_replica_id,
            frozenset(identity.initial_metadata_replica_ids),
            around.boot_id,
            identity.cluster_id,
        ),
        folder.nameserver,
        server=open_server(
            node.host,
            node.nameserver_port,
            options=config.angelia.options(),
            metrics=around.metrics,
            cluster=cluster,
            tls=around.tls,
        ),
        runtime=Runtime(
            *(around.clock, random.random, around.metrics, around.on_fatal), audit=around.audit
        ),
        cluster=NameserverCluster(
            endpoint, endpoints, around.open_channel, folder.form, config.cluster.rack
        ),
        cluster_id=cluster,
        stores=NameserverStores(admin_keys=admin_key_files(config, folder)),
    )
    return ProcessMember(
        nameserver,
        (LogError, MetadataStoreError, MetadataSyncFailed, FormationError, ConfigError),
        lambda: {"nameserver": endpoint, "node": identity.nameserver_node_id},
        partial(_join, around, [other for other in endpoints if other != endpoint]),
        nameserver.health,
    )


async def _join(around: Surroundings, others: Sequence[str]) -> None:
    """Compare the cluster with the other nameservers, before log and rows are opened.

    A new nameserver forms a cluster with them (`strata_nameserver.membership.formation`).

    Raises:
        WrongCluster: they are of another cluster.
    """
    if around.folder.identity.cluster_id:
        await around.join(FolderRole.NAMESERVER, others, 0.0)
    else:
        around.folder.claim()
