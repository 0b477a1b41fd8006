"""`strata storage`: a storage node in a process of its own."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from strata_angelia.factory import open_server
from strata_cli.processes.cluster import ProcessMember, Surroundings
from strata_cli.processes.cluster import run as run_process
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.place import ALONE, MachinePlace
from strata_cli.processes.plugins import storage_plugins
from strata_runtime.runtime import Runtime
from strata_seglog.errors import LogError
from strata_state.metadata import MetadataSyncFailed
from strata_state.ports import StateError
from strata_storage.process.member import StorageMember
from strata_storage.process.member_setup import (
    MemberIdentity,
    MemberNetwork,
    MemberSetup,
)


def run(config: ClusterConfig, data_dir: Path, place: MachinePlace = ALONE) -> None:
    """Run a storage node until it is told to stop.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    run_process(FolderRole.STORAGE, config, data_dir, build, place)


def build(around: Surroundings) -> ProcessMember:
    """Return a storage node of the cluster that the configuration names."""
    config, node, metrics = around.config, around.config.node, around.metrics
    cluster, nameservers = around.cluster, around.nameservers()
    opened = partial(
        open_server,
        options=config.angelia.options(),
        metrics=metrics,
        cluster=cluster,
        tls=around.tls,
    )
    servers = [opened(node.host, node.storage_port, "tcp")]
    advertised = [around.advertised(node.storage_port)]
    if node.storage_http2_port is not None:
        servers.append(opened(node.host, node.storage_http2_port, "http2"))
        advertised.append(around.advertised(node.storage_http2_port))
    node_id = around.folder.identity.storage_node_id
    member = StorageMember(
        config.storage,
        MemberIdentity(
            node_id,
            around.boot_id,
            rack=config.cluster.rack,
            machine=around.place.machine,
            machine_nodes=around.place.count,
            cluster=cluster,
        ),
        around.folder.storage,
        network=MemberNetwork(
            servers=servers,
            advertised=advertised,
            nameservers=nameservers,
            open_channel=around.open_channel,
        ),
        runtime=Runtime(around.clock, random.random, metrics, around.on_fatal, around.tracer),
        setup=MemberSetup(
            config.tier,
            storage_plugins(config.plugins, config.storage),
            block_cache=around.shared.block_cache if around.shared is not None else None,
        ),
    )

    def disk_bytes() -> tuple[int, int]:
        use = member.disk_use()
        return use.used_bytes, use.quota_bytes

    return ProcessMember(
        member,
        (LogError, StateError, MetadataSyncFailed),
        lambda: {"storage": advertised[0], "node": node_id},
        partial(around.join, FolderRole.STORAGE, nameservers, None),
        member.health,
        disk_bytes,
    )
