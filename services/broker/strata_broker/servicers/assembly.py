"""The services of a broker for operators and other brokers, put together in one place.

Two services show the same data: `strata.admin.v1`, which the `strata` command calls, and
`apache.rocketmq.v2.Admin`, for tools that know RocketMQ. Behind both:

holder calls (raft groups) --> operations, message queries, dead letters --> redrive
peers (other brokers) <-- connected clients, commands to clients
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.base.audit import AuditRecorder
from strata_broker.base.config import BrokerConfig
from strata_broker.base.failures import Methods
from strata_broker.base.identity import BrokerIdentity
from strata_broker.clients.client_commands import ClientCommands
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.peers import BrokerPeers
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.quotas import Quotas
from strata_broker.operators.access import AccessOperations
from strata_broker.operators.audit_topic import AuditTopic
from strata_broker.operators.cluster import ClusterOperations
from strata_broker.operators.dead_letters import DeadLetters
from strata_broker.operators.drops import Dropper
from strata_broker.operators.message_queries import MessageQueries
from strata_broker.operators.placement import PlacementOperations
from strata_broker.operators.queue_scans import QueueScans
from strata_broker.operators.quotas import QuotaOperations
from strata_broker.operators.redrive import Redriver
from strata_broker.operators.runtime_stats import RuntimeStats
from strata_broker.operators.subscriptions import Subscriptions
from strata_broker.operators.tier import TierOperations
from strata_broker.operators.topic_consumers import TopicConsumers
from strata_broker.operators.topics import Operations
from strata_broker.operators.transactions import TransactionOperations
from strata_broker.sends.internal_sends import InternalSends
from strata_broker.sends.send import Sender
from strata_broker.sends.transactions import Transactions
from strata_broker.servicers import admin_rpc, rocketmq_rpc
from strata_broker.servicers.admin import AdminServicer
from strata_broker.servicers.cluster_admin import ClusterAdminServicer
from strata_broker.servicers.message_admin import MessageAdminServicer
from strata_broker.servicers.peer_ports import Guarded, PeerPorts
from strata_broker.servicers.placement_admin import PlacementAdminServicer
from strata_broker.servicers.quota_admin import QuotaAdminServicer
from strata_broker.servicers.rocketmq_admin import RocketmqAdminServicer
from strata_broker.servicers.rocketmq_admin_clients import RocketmqAdminClientServicer
from strata_broker.servicers.scan_admin import ScanAdminServicer
from strata_broker.servicers.tier_admin import TierAdminServicer
from strata_broker.servicers.transaction_admin import TransactionAdminServicer
from strata_broker.servicers.user_admin import UserAdminServicer
from strata_broker.storage_client.channels import BrokerNetwork, ChannelFactory, NodeChannels
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.storage_tier import StorageTier
from strata_edge.ports import Edge
from strata_metadata.client import MetadataClient
from strata_runtime.backoff import Random
from strata_runtime.clock import Clock
from strata_runtime.config import Config
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorParts:
    """Parts of a broker that operators' calls go through.

    Attributes:
        identity: who it is.
        version: of the package.
        broker_channels: makes a channel to another broker.
        network: where other brokers call this one.
        shown_config: configuration that `GetConfig` shows.
        calls: what calls of clients run on.
        audit: is told what operators change.
    """

    identity: BrokerIdentity
    version: str
    view: MetadataView
    metadata: MetadataClient
    storage: StorageTier
    provisioner: Provisioner
    sender: Sender
    sessions: Sessions
    telemetry: Telemetry
    routes: Routes
    quotas: Quotas
    transactions: Transactions
    broker_channels: ChannelFactory
    network: BrokerNetwork
    shown_config: Config
    random: Random
    calls: CallRuntime
    audit: AuditRecorder

    @property
    def node_id(self) -> str:
        """Name of the broker among the nodes."""
        return self.identity.node_id

    @property
    def config(self) -> BrokerConfig:
        """Configuration of the broker."""
        return self.calls.config

    @property
    def clock(self) -> Clock:
        """Time."""
        return self.calls.clock

    @property
    def metrics(self) -> Metrics:
        """Where everything is counted."""
        return self.calls.metrics


class Operators:
    """See the module docstring.

    Attributes:
        dropper: drops the data of deleted things.
        stats: load of the broker.
        consumers: the consumer groups of a topic.
    """

    def __init__(self, parts: OperatorParts) -> None:
        config, view, storage, metrics = parts.config, parts.view, parts.storage, parts.metrics
        self._parts = parts
        self.dropper = Dropper(
            view,
            parts.metadata,
            storage.client,
            config=config.metadata,
            random=parts.random,
            metrics=metrics,
        )
        self.stats = RuntimeStats(parts.calls.recorder, parts.clock)
        self._holders = HolderCalls(
            view, storage.client, parts.clock, timeout_s=config.metadata.call_timeout_ms / 1000
        )
        self._clients = ConnectedClients(parts.sessions, parts.telemetry, config.peer)
        self._commands = ClientCommands(parts.telemetry, config.peer, metrics)
        self._peer_ports = PeerPorts(
            parts.identity.host, parts.network, self._clients, commands=self._commands
        )
        self._peers = BrokerPeers(
            parts.node_id,
            view,
            NodeChannels(view, parts.broker_channels),
            clients=self._clients,
            commands=self._commands,
            config=config.peer,
            metrics=metrics,
        )
        self._operations = Operations(
            view,
            parts.metadata,
            self._holders,
            dropper=self.dropper,
            peers=self._peers,
            quotas=parts.quotas,
            config=config,
        )
        self._queries = MessageQueries(view, storage.client, self._holders)
        if config.audit.topic:
            self._audit_topic = AuditTopic(
                parts.identity,
                view,
                self._operations,
                sends=InternalSends(parts.sender, parts.node_id, config.send.timeout_ms / 1000),
                config=config.audit,
                requests=parts.calls.requests,
                metrics=metrics,
            )
            parts.audit.add(self._audit_topic)
        self.consumers = TopicConsumers(view, self._holders, self._peers, clock=parts.clock)

    @property
    def operations(self) -> Operations:
        """Operations on topics and consumer groups."""
        return self._operations

    def register(self, edge: Edge, guarded: Guarded) -> None:
        """Serve operators on an edge, and other brokers there or on ports of their own."""
        self._serve_strata(guarded(edge))
        self._serve_rocketmq(guarded(edge))
        self._peer_ports.register(edge, guarded)

    async def start_peers(self, client_port: int) -> list[str]:
        """Serve other brokers; see `PeerPorts.start`."""
        return await self._peer_ports.start(client_port)

    async def stop_peers(self) -> None:
        """Serve other brokers no longer."""
        await self._peer_ports.stop()

    def start(self, tasks: Tasks) -> None:
        """Start the background loops."""
        if self._parts.config.audit.topic:
            tasks.spawn("audit topic", self._audit_topic.run())
        tasks.spawn("repeat drops", self.dropper.run())
        tasks.spawn("sample rates", self.stats.run())

    async def close(self) -> None:
        """Close the channels to other brokers."""
        await self._peers.close()

    def _serve_strata(self, edge: Methods) -> None:
        parts = self._parts
        view, storage, config = parts.view, parts.storage, parts.config
        cluster = ClusterOperations(
            view,
            parts.metadata,
            storage.client,
            leaders=storage.leaders,
            config=config.metadata,
            watch=storage.cluster,
        )
        transactions = TransactionOperations(view, storage.client, parts.transactions)
        quotas = QuotaOperations(view, parts.metadata, parts.quotas, config=config.metadata)
        access = AccessOperations(view, parts.metadata, config=config, clock=parts.clock)
        tier = TierOperations(view, storage.client, config.metadata)
        dead_letters = DeadLetters(view, self._queries, self._holders)
        redriver = Redriver(
            parts.identity,
            parts.provisioner,
            dead_letters,
            queries=self._queries,
            storage=storage,
            sender=parts.sender,
            sessions=parts.sessions,
            runtime=parts.calls,
        )
        scans = QueueScans(
            view, storage.client, self._holders, limits=config.pull, metrics=parts.metrics
        )
        admin_rpc.serve(
            edge,
            AdminServicer(view, self._operations, self._peers, config=parts.shown_config),
            ClusterAdminServicer(cluster, parts.version, parts.node_id),
            TransactionAdminServicer(transactions),
            QuotaAdminServicer(quotas),
            UserAdminServicer(access),
            PlacementAdminServicer(PlacementOperations(parts.metadata)),
            TierAdminServicer(tier),
            MessageAdminServicer(view, self._queries, dead_letters, redriver=redriver),
            ScanAdminServicer(scans),
            trail=parts.audit,
        )

    def _serve_rocketmq(self, edge: Methods) -> None:
        parts = self._parts
        view, config, node_id = parts.view, parts.config, parts.node_id
        subscriptions = Subscriptions(view, self._operations, self._peers, clock=parts.clock)
        servicer = RocketmqAdminServicer(
            self._operations,
            subscriptions,
            parts.routes,
            sessions=parts.sessions,
            stats=self.stats,
            node_id=node_id,
            version=parts.version,
        )
        client_servicer = RocketmqAdminClientServicer(
            view,
            self._operations,
            subscriptions,
            queries=self._queries,
            sends=InternalSends(parts.sender, node_id, config.send.timeout_ms / 1000),
            peers=self._peers,
            node_id=node_id,
        )
        rocketmq_rpc.serve(edge, servicer, client_servicer, trail=parts.audit)
