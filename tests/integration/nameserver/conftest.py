"""Three nameservers in one process over real Angelia tcp on loopback."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.factory import open_channel, open_server
from strata_metadata import (
    ClusterView,
    MetadataClient,
    MetadataClientOptions,
    MetadataFollower,
    MetadataFollowerOptions,
    NodePresence,
    PresenceOptions,
)
from strata_metadata.follower import MetadataSources
from strata_nameserver.base.admin_keys import AdminKeyFiles
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.process.app import (
    NameserverApp,
    NameserverCluster,
    NameserverIdentity,
    NameserverStores,
)
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks
from strata_testing.simulated_disk import SimulatedDisk
from tests.parts.ports import free_endpoints

MIB = 1024 * 1024
CONFIG = NameserverConfig(
    raft_groups_per_storage_node=1,
    peer_interval_ms=100,
    placement_interval_ms=100,
    # A nameserver that was away for long needs a snapshot.
    sync_interval_ms=100,
    log_segment_bytes=1024 * 1024,
    max_kept_log_entries=10,
    ballast_bytes=0,
    refuse_changes_free_bytes=8 * MIB,
)


class Member:
    """One nameserver: its folder and ids outlive its stops."""

    def __init__(self, number: int, endpoint: str, folder: Path) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.number = number
        self.boots = 0
        self.app: NameserverApp | None = None
        # Where its log lies; None: in its folder.
        self.disk: SimulatedDisk | None = None
        self.empty()

    def empty(self) -> None:
        """Forget everything: another nameserver at this address."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.keys_folder.mkdir(parents=True, exist_ok=True)
        self.replica_id = random.getrandbits(62) | 1
        self.node_id = f"nameserver-{self.number}-{self.replica_id:x}"
        self.cluster_id = ""
        self.voters: frozenset[int] = frozenset()

    @property
    def keys_folder(self) -> Path:
        """The data folder, as far as keys of admins are in it."""
        return self.folder.with_name(f"{self.folder.name}-keys")

    def save(self, cluster_id: str, replica_ids: Sequence[int]) -> None:
        self.cluster_id, self.voters = cluster_id, frozenset(replica_ids)


class NameserverSet:
    """Nameservers that are started and stopped one by one, and what their clients use."""

    def __init__(self, members: Sequence[Member], config: NameserverConfig) -> None:
        self.members = list(members)
        self.config = config
        self.failures: list[str] = []
        self.tasks = Tasks("test", self._failed)
        self._clients: list[MetadataClient] = []
        # For members that start from now on.
        self.controls_access = False

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    async def start(self, *members: Member) -> None:
        """Start members together; return when all serve."""
        async with asyncio.TaskGroup() as group:
            for member in members or self.members:
                group.create_task(self._start(member))

    async def stop(self, member: Member) -> None:
        app, member.app = member.app, None
        if app is not None:
            await app.stop(0.1)

    async def close(self) -> None:
        await self.tasks.stop()
        for client in self._clients:
            await client.close()
        for member in self.members:
            await self.stop(member)
        assert self.failures == []

    async def leader(self, timeout_s: float = 30.0) -> Member:
        """Wait for a ready leader."""
        async with asyncio.timeout(timeout_s):
            while True:
                for member in self.members:
                    if member.app is not None and member.app.is_leader:
                        return member
                await asyncio.sleep(0.01)

    def client(self) -> MetadataClient:
        client = MetadataClient(
            self.endpoints,
            open_channel,
            MetadataClientOptions(call_timeout_ms=10_000),
            random=random.random,
            metrics=Metrics.disabled(),
        )
        self._clients.append(client)
        return client

    def view(self) -> ClusterView:
        """A view that follows from now on."""
        view = ClusterView()
        self.follower(self.endpoints, view)
        return view

    def follower(self, endpoints: Sequence[str], view: ClusterView) -> MetadataFollower:
        """Let a view follow some of the nameservers."""
        follower = MetadataFollower(
            MetadataSources(endpoints, open_channel),
            view,
            options=MetadataFollowerOptions(),
            clock=SystemClock(),
            random=random.random,
            metrics=Metrics.disabled(),
        )
        self.tasks.spawn("follower", follower.run())
        return follower

    def presence(
        self,
        node: meta_pb2.Node,
        make_heartbeat: Callable[[bool], meta_pb2.HeartbeatRequest] | None = None,
    ) -> asyncio.Task[None]:
        """Register a node and send its heartbeats until the task is cancelled."""
        presence = NodePresence(
            self.client(),
            node,
            PresenceOptions(interval_ms=100),
            metrics=Metrics.disabled(),
            make_heartbeat=make_heartbeat,
        )
        return self.tasks.spawn(f"presence-{node.node_id}", presence.run())

    async def _start(self, member: Member) -> None:
        member.boots += 1
        host, _, port = member.endpoint.rpartition(":")
        app = NameserverApp(
            self.config,
            NameserverIdentity(
                member.node_id,
                member.replica_id,
                member.voters,
                random.getrandbits(63),
                member.cluster_id,
            ),
            member.folder,
            server=open_server(host, int(port)),
            runtime=Runtime(SystemClock(), random.random, Metrics.disabled(), self._failed),
            stores=NameserverStores(
                disk=member.disk,
                admin_keys=AdminKeyFiles(member.keys_folder, self.controls_access),
            ),
            cluster=NameserverCluster(
                endpoint=member.endpoint,
                endpoints=self.endpoints,
                open_channel=open_channel,
                save_formation=member.save,
            ),
        )
        await app.start()
        member.app = app

    def _failed(self, name: str, failure: BaseException) -> None:
        self.failures.append(f"{name}: {failure!r}")


@pytest.fixture(params=[0])
async def nameservers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[NameserverSet]:
    """Three nameservers, formed; a parameter above 0: with logs on disks of so many bytes."""
    members = [
        Member(number, endpoint, tmp_path / f"nameserver-{number}")
        for number, endpoint in enumerate(free_endpoints(3), start=1)
    ]
    for member in members if request.param else ():
        member.disk = SimulatedDisk(capacity_bytes=request.param)
    nameservers = NameserverSet(members, CONFIG)
    try:
        await nameservers.start()
        yield nameservers
    finally:
        await nameservers.close()
