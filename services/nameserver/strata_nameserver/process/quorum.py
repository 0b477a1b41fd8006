r"""This nameserver among the others: who they are, traffic between them, who takes part.

    PeerDirectory (Hello) --- Peering (raft messages, beats, snapshots)
                        \--- MemberKeeper (at the leader)
    MetadataClient --- NodePresence: this nameserver's own row and heartbeats

A process that is the whole cluster has none of it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import Server
from strata_metadata.client import MetadataClient
from strata_metadata.options import MetadataClientOptions, PresenceOptions
from strata_metadata.presence import NodePresence
from strata_multiraft.driver import MultiRaft
from strata_multiraft.peering import RAFT_SERVICE, PeerIdentity, Peering
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.leading.access_keeper import CallLeader
from strata_nameserver.leading.metadata import Metadata
from strata_nameserver.membership.cluster import NameserverCluster
from strata_nameserver.membership.formation import Formation, decide_formation
from strata_nameserver.membership.identity import NameserverIdentity
from strata_nameserver.membership.members import MemberKeeper, ReplicaMember
from strata_nameserver.membership.peers import PeerDirectory
from strata_nameserver.servicers.peer import PEER_SERVICE, PeerServicer
from strata_nameserver.state.machine import MetadataMachine
from strata_runtime.blocking import run_to_end
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks

_FORMATION_PAUSE_S = 0.1
_OWN_TRY_MS = 500


class Quorum:
    """See the module docstring. Made, registered, formed, attached, started; then stopped.

    Args:
        cluster: the configured nameservers.
        identity: of this one.
        cluster_id: what the process knows of its cluster; it learns it here.
        config: times.
        runtime: what the process gives it.
    """

    def __init__(
        self,
        cluster: NameserverCluster,
        identity: NameserverIdentity,
        cluster_id: ClusterId,
        *,
        config: NameserverConfig,
        runtime: Runtime,
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._cluster_id = cluster_id
        self._config = config
        self._metrics = runtime.metrics
        self.directory = PeerDirectory(
            meta_pb2.NameserverPeer(
                node_id=identity.node_id,
                replica_id=identity.replica_id,
                endpoint=cluster.endpoint,
                cluster_id=identity.cluster_id if identity.voters else "",
                initial_replica_ids=sorted(identity.voters),
            ),
            cluster.endpoints,
            cluster.open_channel,
            interval_s=config.peer_interval_ms / 1_000,
        )
        self.peering = Peering(
            PeerIdentity(identity.node_id, identity.boot_id),
            directory=self.directory,
            clock=runtime.clock,
            metrics=runtime.metrics,
            on_fatal=runtime.on_fatal,
            random=runtime.random,
            connect=cluster.open_channel,
        )
        self._client = MetadataClient(
            cluster.endpoints,
            cluster.open_channel,
            MetadataClientOptions(try_timeout_ms=_OWN_TRY_MS),
            random=runtime.random,
            metrics=runtime.metrics,
        )
        self._tasks = Tasks("quorum", runtime.on_fatal, max_tasks=4)

    @property
    def call_leader(self) -> CallLeader:
        """Calls MetaService at the nameserver that leads."""
        return self._client.call

    def register(self, server: Server) -> None:
        """Register the services that only nameservers call."""
        server.register(PEER_SERVICE, PeerServicer(self.directory))
        server.register(RAFT_SERVICE, self.peering.servicer)

    async def form(self) -> frozenset[int]:
        """Return the voters to begin with; empty: the others have to take this one in.

        The server must answer meanwhile. Waits for as long as it takes: alone, a nameserver
        cannot know whether it is a new one.

        Raises:
            FormationError: the nameservers do not belong together.
        """
        own = self.directory.own
        while not own.cluster_id:
            formation = decide_formation(own, await self.directory.ask())
            if formation is None:
                await asyncio.sleep(_FORMATION_PAUSE_S)
                continue
            await self._write_down(formation)
            own = self.directory.own
        initial = frozenset(own.initial_replica_ids)
        return initial if own.replica_id in initial else frozenset()

    def attach(self, raft: MultiRaft) -> None:
        """Carry the driver's messages."""
        self.peering.attach(raft)

    async def start(
        self, replica: ReplicaMember, machine: MetadataMachine, metadata: Metadata
    ) -> None:
        """Begin to talk to the others; the driver runs and the server answers."""
        interval_s = self._config.peer_interval_ms / 1_000
        keeper = MemberKeeper(
            replica,
            machine,
            self.directory,
            forget_node=lambda node_id: metadata.remove_node(node_id, force=True),
            interval_s=interval_s,
        )
        presence = NodePresence(
            self._client,
            meta_pb2.Node(
                node_id=self._identity.node_id,
                kind=meta_pb2.NODE_KIND_NAMESERVER,
                endpoints=[self._cluster.endpoint],
                boot_id=self._identity.boot_id,
                rack=self._cluster.rack,
                metadata_replica_id=self._identity.replica_id,
            ),
            PresenceOptions(),
            metrics=self._metrics,
            cluster=self._cluster_id,
        )
        await self.peering.start()
        self._tasks.spawn("peers", self.directory.run())
        self._tasks.spawn("members", keeper.run())
        self._tasks.spawn("presence", presence.run())

    async def stop(self) -> None:
        """Fall silent and close all connections; the driver has stopped."""
        await self._tasks.stop()
        await self.peering.stop()
        await self._client.close()
        await self.directory.close()

    async def _write_down(self, formation: Formation) -> None:
        save = self._cluster.save_formation
        await run_to_end(partial(save, formation.cluster_id, formation.replica_ids))
        self._cluster_id.learn(formation.cluster_id)
        formed = meta_pb2.NameserverPeer()
        formed.CopyFrom(self.directory.own)
        formed.cluster_id = formation.cluster_id
        formed.initial_replica_ids.extend(formation.replica_ids)
        self.directory.own = formed
