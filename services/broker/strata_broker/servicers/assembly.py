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
from strata_broker.base.failures import BothMethods, Methods
from strata_broker.base.identity import BrokerIdentity
from strata_broker.clients.client_commands import ClientCommands
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.connection_balance import ConnectionBalancer
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.peers import BrokerPeers
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.replies import Replies
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions
from strata_broker.clients.telemetry import Telemetry
from strata_broker.operators.access import AccessOperations
from strata_broker.operators.audit_topic import AuditTopic
from strata_broker.operators.cluster import ClusterOperations
from strata_broker.operators.dead_letters import DeadLetters
from strata_broker.operators.drops import Dropper
from strata_broker.operators.lite_topics import LiteTopicLists
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
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.sends.internal_sends import InternalSends
from strata_broker.sends.send import Sender
from strata_broker.sends.transactions import Transactions
from strata_broker.servicers import admin_rpc, rocketmq_rpc
from strata_broker.servicers.admin import AdminServicer
from strata_broker.servicers.cluster_admin import ClusterAdminServicer
from strata_broker.servicers.lite_admin import LiteAdminServicer
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
from strata_broker.storage_client.cluster_access import ClusterAccess
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_edge.ports import Edge
from strata_runtime.backoff import Random
from strata_runtime.config import Config
from strata_runtime.tasks import Tasks


@dataclass(frozen=True, slots=True)
class ShownBroker:
    """A broker as operators see it.

    Attributes:
        identity: who it is.
        version: of the package.
        config: configuration that `GetConfig` shows.
    """

    identity: BrokerIdentity
    version: str
    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientServing:
    """Parts that serve clients; operators look into them and act through them.

    Attributes:
        provisioner: finds topics and consumer groups, and creates them.
        sender: sends messages.
        sessions: clients that are connected.
        telemetry: their settings streams.
        routes: of topics.
        transactions: ends transactions.
        edge: where they are connected.
        lite: their subscriptions of lite topics.
    """

    provisioner: Provisioner
    sender: Sender
    sessions: Sessions
    telemetry: Telemetry
    routes: Routes
    transactions: Transactions
    edge: Edge
    lite: LiteSubscriptions


@dataclass(frozen=True, slots=True)
class PeerNetwork:
    """The other brokers.

    Attributes:
        network: where they call this one.
        channels: makes a channel to one of them.
    """

    network: BrokerNetwork
    channels: ChannelFactory


class Operators:
    """See the module docstring.

    Args:
        broker: as operators see it.
        clients: what serves clients.
        cluster: what the broker knows of the cluster, and asks it.
        others: the other brokers.
        calls: what calls run on.
        random: numbers in [0, 1).
        audit: is told what operators change.

    Attributes:
        dropper: drops the data of deleted things.
        stats: load of the broker.
        consumers: the consumer groups of a topic.
        replies: of consumers to clients that asked.
        resets: of consumer groups.
    """

    def __init__(
        self,
        broker: ShownBroker,
        clients: ClientServing,
        cluster: ClusterAccess,
        *,
        others: PeerNetwork,
        calls: CallRuntime,
        random: Random,
        audit: AuditRecorder,
    ) -> None:
        config, metrics, clock = calls.config, calls.metrics, calls.clock
        view, storage = cluster.view, cluster.storage
        self._broker = broker
        self._clients = clients
        self._cluster = cluster
        self._calls = calls
        self._audit = audit
        self._node_id = broker.identity.node_id
        self.dropper = Dropper(
            view,
            cluster.metadata,
            storage.client,
            config=config.metadata,
            random=random,
            metrics=metrics,
        )
        self.stats = RuntimeStats(calls.recorder, clock)
        self._holders = HolderCalls(
            view, storage.client, clock, timeout_s=config.metadata.call_timeout_ms / 1000
        )
        self._meet_peers(others)
        self._operations = Operations(
            cluster.shown,
            cluster.metadata,
            self._holders,
            dropper=self.dropper,
            peers=self._peers,
            resets=self.resets,
            quotas=cluster.quotas,
            config=config,
        )
        self._queries = MessageQueries(view, storage.client, self._holders)
        self._audit_topic = self._new_audit_topic() if config.audit.topic else None
        self.consumers = TopicConsumers(view, self._holders, self._peers, clock=clock)

    def _meet_peers(self, others: PeerNetwork) -> None:
        view, clients = self._cluster.view, self._clients
        config, metrics = self._calls.config.peer, self._calls.metrics
        call_timeout_s = config.call_timeout_ms / 1_000
        self.replies = Replies(self._calls.config.remoting, call_timeout_s, metrics)
        self.resets = GroupResets()
        connected = ConnectedClients(
            clients.sessions,
            clients.telemetry,
            config,
            connections=clients.edge.connections,
            replied_user=self.replies.user_of,
        )
        commands = ClientCommands(clients.telemetry, config, metrics)
        self._peer_ports = PeerPorts(
            self._broker.identity.host,
            others.network,
            connected,
            commands=commands,
            lite=clients.lite,
            replies=self.replies,
            resets=self.resets,
            shown=self._cluster.shown,
        )
        self._peers = BrokerPeers(
            self._node_id,
            view,
            NodeChannels(view, others.channels),
            clients=connected,
            commands=commands,
            config=config,
            metrics=metrics,
        )
        clients.lite.tell_others = self._peers.sync_lite
        self.replies.passed_by(self._peers)
        self.resets.passed_by(self._peers)
        self._cluster.shown.known_by(self._peers)
        self._balancer = ConnectionBalancer(
            self._node_id,
            view,
            clients.edge,
            peers=self._peers,
            telemetry=clients.telemetry,
            config=self._calls.config.balance,
            metrics=metrics,
        )

    def _new_audit_topic(self) -> AuditTopic:
        calls = self._calls
        topic = AuditTopic(
            self._broker.identity,
            self._cluster.view,
            self._operations,
            sends=self._internal_sends(),
            config=calls.config.audit,
            requests=calls.requests,
            metrics=calls.metrics,
        )
        self._audit.add(topic)
        return topic

    def _internal_sends(self) -> InternalSends:
        timeout_s = self._calls.config.send.timeout_ms / 1000
        return InternalSends(self._clients.sender, self._node_id, timeout_s)

    @property
    def operations(self) -> Operations:
        """Operations on topics and consumer groups."""
        return self._operations

    def register(self, edge: Edge, guarded: Guarded, also: Methods | None = None) -> None:
        """Serve operators on an edge, and other brokers there or on ports of their own.

        Args:
            edge: of the broker.
            guarded: puts checks before handlers.
            also: takes the handlers for operators, too; None: nothing does.
        """
        served = edge if also is None else BothMethods(edge, also)
        self._serve_strata(guarded(served))
        self._serve_rocketmq(guarded(served))
        self._peer_ports.register(edge, guarded)

    async def start_peers(self, client_port: int) -> list[str]:
        """Serve other brokers; see `PeerPorts.start`."""
        return await self._peer_ports.start(client_port)

    async def stop_peers(self) -> None:
        """Serve other brokers no longer."""
        await self._peer_ports.stop()

    def start(self, tasks: Tasks) -> None:
        """Start the background loops."""
        if self._audit_topic is not None:
            tasks.spawn("audit topic", self._audit_topic.run())
        tasks.spawn("repeat drops", self.dropper.run())
        tasks.spawn("sample rates", self.stats.run())
        if self._calls.config.balance.enabled:
            tasks.spawn("balance connections", self._balancer.run())

    async def close(self) -> None:
        """Close the channels to other brokers."""
        await self._peers.close()

    def _serve_strata(self, edge: Methods) -> None:
        clients, calls, audit = self._clients, self._calls, self._audit
        view, metadata, storage = self._cluster.view, self._cluster.metadata, self._cluster.storage
        config = calls.config
        cluster = ClusterOperations(
            view,
            metadata,
            storage.client,
            leaders=storage.leaders,
            config=config.metadata,
            watch=storage.cluster,
        )
        transactions = TransactionOperations(view, storage.client, clients.transactions)
        quotas = QuotaOperations(view, metadata, self._cluster.quotas, config=config.metadata)
        access = AccessOperations(view, metadata, config=config, clock=calls.clock)
        tier = TierOperations(view, storage.client, config.metadata)
        dead_letters = DeadLetters(view, self._queries, self._holders)
        redriver = Redriver(
            self._broker.identity,
            clients.provisioner,
            dead_letters,
            queries=self._queries,
            storage=storage,
            sender=clients.sender,
            sessions=clients.sessions,
            runtime=calls,
        )
        scans = QueueScans(
            view, storage.client, self._holders, limits=config.pull, metrics=calls.metrics
        )
        admin_rpc.serve(
            edge,
            AdminServicer(view, self._operations, self._peers, config=self._broker.config),
            ClusterAdminServicer(cluster, self._broker.version, self._node_id),
            TransactionAdminServicer(transactions),
            QuotaAdminServicer(quotas),
            UserAdminServicer(access),
            PlacementAdminServicer(PlacementOperations(metadata)),
            TierAdminServicer(tier),
            MessageAdminServicer(view, self._queries, dead_letters, redriver=redriver),
            ScanAdminServicer(scans),
            LiteAdminServicer(LiteTopicLists(view, storage.client)),
            trail=audit,
        )

    def _serve_rocketmq(self, edge: Methods) -> None:
        view, node_id, clients = self._cluster.view, self._node_id, self._clients
        clock = self._calls.clock
        subscriptions = Subscriptions(view, self._operations, self._peers, clock=clock)
        servicer = RocketmqAdminServicer(
            self._operations,
            subscriptions,
            clients.routes,
            sessions=clients.sessions,
            stats=self.stats,
            node_id=node_id,
            version=self._broker.version,
        )
        client_servicer = RocketmqAdminClientServicer(
            view,
            self._operations,
            subscriptions,
            queries=self._queries,
            sends=self._internal_sends(),
            peers=self._peers,
            node_id=node_id,
        )
        rocketmq_rpc.serve(edge, servicer, client_servicer, trail=self._audit)
