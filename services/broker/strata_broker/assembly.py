"""All parts of a broker, put together in one place; `app` starts and stops them."""

from __future__ import annotations

from collections.abc import Sequence

from strata_angelia.ports import Channel
from strata_broker.access.authentication import Authenticator
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.guard import GuardedMethods
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.access.peer_headers import PeerHeaders
from strata_broker.base.audit import AuditRecorder, LogSink
from strata_broker.base.config import BrokerConfig
from strata_broker.base.failures import ContainingEdge, Methods
from strata_broker.base.identity import BrokerIdentity
from strata_broker.base.kept_methods import KeptMethods
from strata_broker.base.message_traces import MessageTraces
from strata_broker.base.metrics import METRICS
from strata_broker.base.window_options import WindowOptions
from strata_broker.clients.gauges import show_broker
from strata_broker.clients.liveness import LivenessReporter
from strata_broker.clients.producers import Producers
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.registration import BrokerRegistration
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.budget import SendBudget, max_requests
from strata_broker.metadata.filters import Filters
from strata_broker.metadata.first_uses import FirstUses
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.quotas import Quotas
from strata_broker.metadata.recorder import Recorder
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.operators.rehashes import Rehasher
from strata_broker.operators.windows import OwnWindows, WindowCollector
from strata_broker.receives.ack import Acknowledger, LeaseKeeper
from strata_broker.receives.assembly import new_deliverable_looks, new_puller, new_receiver
from strata_broker.receives.deliver import Deliverer
from strata_broker.receives.lite_consumers import LiteConsumers
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.remoting.assembly import new_remoting
from strata_broker.sends.checks import TransactionChecker
from strata_broker.sends.end_calls import END, EndCalls
from strata_broker.sends.gathered_ends import GatheredEnds
from strata_broker.sends.given_checks import GivenChecks
from strata_broker.sends.internal_sends import InternalSends
from strata_broker.sends.message_groups import MessageGroups
from strata_broker.sends.recalls import Recaller
from strata_broker.sends.send import Sender
from strata_broker.sends.transactions import Transactions
from strata_broker.servicers.assembly import ClientServing, Operators, PeerNetwork, ShownBroker
from strata_broker.servicers.hot import HotCalls
from strata_broker.servicers.messaging import MessagingServicer, WaitingMessages
from strata_broker.servicers.messaging_rpc import SERVICE, UnaryCalls, serve_messaging
from strata_broker.servicers.plugins import BrokerPlugin, PluginParts
from strata_broker.serving import Serving
from strata_broker.storage_client.channels import BrokerNetwork
from strata_broker.storage_client.cluster_access import ClusterAccess
from strata_broker.storage_client.storage_tier import StorageTier
from strata_edge.ports import Edge
from strata_metadata.client import MetadataClient
from strata_metadata.follower import MetadataFollower, MetadataSources
from strata_runtime.config import Config
from strata_runtime.logs import get_logger
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks
from strata_runtime.version import VERSION


class BrokerParts:
    """The parts of a broker; none of them runs yet.

    Args:
        identity: who this broker is.
        config: its sections.
        edge: not yet started; the broker adds its methods to it.
        network: channels to nameservers, storage nodes and brokers; owned by the broker.
        runtime: what the process gives it.
        shown_config: configuration that `GetConfig` shows, of the whole process; None: `config`.
        windows: options of metric windows; None: they are not collected.
        plugins: what it serves beside messages.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        config: BrokerConfig,
        edge: Edge,
        *,
        network: BrokerNetwork,
        runtime: Runtime,
        shown_config: Config | None = None,
        windows: WindowOptions | None = None,
        plugins: Sequence[BrokerPlugin] = (),
    ) -> None:
        self._identity = identity
        self.port, self.endpoint = 0, ""
        self._config = config
        self._edge = edge
        self._network = network
        clock, random, metrics = runtime.clock, runtime.random, runtime.metrics
        self._runtime = runtime
        self._clock, self._random, self._metrics = clock, random, metrics
        self._window_options = windows
        self._traces = MessageTraces(runtime.tracer)
        self._log = get_logger("broker")
        metrics.declare(METRICS)
        self.audit = AuditRecorder((LogSink(), runtime.audit), config.audit, clock, metrics=metrics)
        self._tasks = Tasks("broker", runtime.on_fatal)
        self.requests = RequestTasks("broker", metrics, max_tasks=max_requests(config))
        self.view = MetadataView(config.metadata.max_topics_in_use)
        self.access = Authenticator(
            self.view, config.access_control, clock, audit=self.audit, metrics=metrics
        )
        self.handles = HandleSigner(self.view, config.access_control, clock)
        self.sessions = Sessions(config.session, clock, metrics)
        self._quotas = Quotas(self.view, config.quotas, clock, metrics=metrics)
        self._metadata = MetadataClient(
            network.nameservers,
            network.metadata_channels,
            config.metadata_client(),
            random=random,
            metrics=metrics,
        )
        self._registration = BrokerRegistration(
            self._metadata,
            network.cluster,
            config,
            tasks=self._tasks,
            clock=clock,
            metrics=metrics,
        )
        self._follower = self._new_follower()
        self._storage = StorageTier(
            identity.boot_id,
            self.view,
            network.storage_channels,
            config=config,
            runtime=runtime,
            tasks=self._tasks,
            requests=self.requests,
        )
        self._cluster = self._new_cluster_access()
        self._plugins = plugins
        self._serve_clients()
        self._serve_operators(shown_config or config)
        self._serve_plugins()
        self._storage.cluster.add(edge.health)
        self._storage.cluster.add(network.health)
        self._serving = Serving(edge, self._storage.cluster, self._plugins)
        show_broker(metrics, self.sessions, self.view, lambda: bool(self.endpoint))

    def _new_cluster_access(self) -> ClusterAccess:
        first_uses = FirstUses(
            self.view, self._config.metadata, clock=self._clock, metrics=self._metrics
        )
        return ClusterAccess(
            self.view,
            self._metadata,
            self._storage,
            self._quotas,
            first_uses,
            ShownRevisions(self.view),
        )

    def _new_follower(self) -> MetadataFollower:
        network = self._network
        return MetadataFollower(
            MetadataSources(
                network.nameservers, network.metadata_channels, lambda: network.storage_seeds
            ),
            self.view,
            options=self._config.metadata_follower(),
            clock=self._clock,
            random=self._random,
            metrics=self._metrics,
            cluster=network.cluster,
        )

    def _serve_clients(self) -> None:
        config, clock, metrics = self._config, self._clock, self._metrics
        view = self.view
        provisioner = self._provisioner = Provisioner(
            view,
            self._metadata,
            self._quotas,
            first_uses=self._cluster.first_uses,
            shown=self._cluster.shown,
            config=config.metadata,
            requests=self.requests,
            audit=self.audit,
        )
        recorder = Recorder(clock, metrics, config.refusals)
        calls = self._calls = CallRuntime(
            config,
            clock,
            self.requests,
            recorder,
            metrics,
            self.access,
            self.handles,
            passes=self._edge.passes,
            marks={mark for plugin in self._plugins for mark in plugin.marks},
        )
        filters = Filters(config.receive, clock, metrics)
        self._unclaimed = Unclaimed(config.receive, clock, metrics)
        producers = self._watch_producers()
        self._follow_transactions(producers, provisioner)
        self._routes = Routes(view, config.route, config.route.advertised_endpoint)
        self._telemetry = Telemetry(
            view,
            self.sessions,
            self._quotas,
            producers=producers,
            filters=filters,
            config=config,
            requests=self.requests,
            metrics=metrics,
        )
        self._telemetry.on_idle(self.checker.wake)
        self._deliverer = Deliverer(
            self._storage.client, self._identity.host, runtime=calls, traces=self._traces
        )
        self._serve_batches(provisioner, filters, producers)
        self._serve_messaging(self._new_servicer(filters), producers)

    def _new_servicer(self, filters: Filters) -> MessagingServicer:
        calls, provisioner, storage = self._calls, self._provisioner, self._storage
        self._puller = new_puller(
            provisioner,
            storage,
            filters,
            sessions=self.sessions,
            store_host=self._identity.host,
            runtime=calls,
        )
        recaller = Recaller(provisioner, storage.client, runtime=calls)
        return MessagingServicer(
            provisioner,
            self._routes,
            leases=LeaseKeeper(
                provisioner, storage.client, unclaimed=self._unclaimed, runtime=calls
            ),
            waiting=WaitingMessages(self._transactions, recaller),
            puller=self._puller,
            sessions=self.sessions,
            lite=self._lite,
        )

    def _serve_messaging(self, servicer: MessagingServicer, producers: Producers) -> None:
        calls, provisioner, storage = self._calls, self._provisioner, self._storage
        unary = UnaryCalls(servicer, calls)
        alone = KeptMethods()
        unary.serve(self._methods(alone))
        hot = HotCalls(
            self._sender,
            self._receiver,
            self._acknowledger,
            ends=EndCalls(
                self._transactions, unary.room, alone.unary[f"/{SERVICE}/{END}"], runtime=calls
            ),
            runtime=calls,
            plugins=self._plugins,
        )
        self._edge.set_hot_handler(SERVICE, hot)
        self._remoting = new_remoting(
            self._identity.host,
            hot,
            provisioner,
            sessions=self.sessions,
            runtime=calls,
            random=self._random,
            sender=self._sender,
            producers=producers,
            looks=new_deliverable_looks(
                self._identity.boot_id, provisioner, storage, self._receiver.room, calls
            ),
            handover=self._edge.handover,
        )
        serve_messaging(
            self._methods(),
            unary,
            puller=self._puller,
            telemetry=self._telemetry,
            runtime=calls,
            face=self._methods(self._remoting.face) if self._remoting is not None else None,
        )

    def _serve_batches(
        self, provisioner: Provisioner, filters: Filters, producers: Producers
    ) -> None:
        calls = self._calls
        self._message_groups = MessageGroups(self._storage.earlier.message_groups_left)
        self.send_budget = SendBudget(calls.config.send, calls.metrics)
        lite_consumers = LiteConsumers(calls.clock)
        self._lite = LiteSubscriptions(
            provisioner,
            self._storage,
            lite_consumers,
            sessions=self.sessions,
            telemetry=self._telemetry,
            config=calls.config,
            clock=calls.clock,
        )
        self._receiver = new_receiver(
            self._identity.boot_id,
            provisioner,
            self._storage,
            self._deliverer,
            filters,
            self.sessions,
            self._unclaimed,
            lite_consumers,
            calls,
        )
        self._sender = Sender(
            provisioner,
            self._storage,
            self._message_groups,
            budget=self.send_budget,
            quotas=self._quotas,
            producers=producers,
            runtime=calls,
            traces=self._traces,
        )
        self._acknowledger = Acknowledger(
            provisioner, self._storage.acker, unclaimed=self._unclaimed, runtime=calls
        )

    def _watch_producers(self) -> Producers:
        config = self._config.session
        producers = Producers(
            self.view, self.sessions, max_topics_per_client=config.max_subscriptions_per_client
        )
        self.liveness = LivenessReporter(
            self._identity.boot_id,
            self.view,
            self._storage.channels,
            sessions=self.sessions,
            producers=producers,
            config=config,
        )
        return producers

    def _follow_transactions(self, producers: Producers, provisioner: Provisioner) -> None:
        storage, config = self._storage.client, self._config.storage_client
        self._transactions = Transactions(
            self.view,
            storage,
            self._metrics,
            ends=GatheredEnds(
                storage,
                max_per_call=config.max_ends_per_call,
                clock=self._clock,
                requests=self.requests,
            ),
            handles=self.handles,
            timeout_s=config.call_timeout_ms / 1000,
        )
        transaction = self._config.transaction
        self.given_checks = GivenChecks(
            self._storage.channels,
            max_waiting=transaction.max_checks_waiting,
            timeout_s=self._config.session.report_timeout_ms / 1000,
            metrics=self._metrics,
        )
        self.checker = TransactionChecker(
            self.view,
            producers,
            provisioner,
            transactions=self._transactions,
            config=transaction,
            clock=self._clock,
            requests=self.requests,
            metrics=self._metrics,
        )
        self.checker.on_given(self.given_checks.given)
        self._storage.on_checks(self.checker.take)

    def _serve_operators(self, shown_config: Config) -> None:
        self._operators = Operators(
            ShownBroker(self._identity, VERSION, shown_config),
            ClientServing(
                provisioner=self._provisioner,
                sender=self._sender,
                sessions=self.sessions,
                telemetry=self._telemetry,
                routes=self._routes,
                transactions=self._transactions,
                edge=self._edge,
                lite=self._lite,
            ),
            self._cluster,
            others=PeerNetwork(self._network, self._broker_channel),
            calls=self._calls,
            random=self._random,
            audit=self.audit,
        )
        self._rehasher = Rehasher(
            self.view,
            self._message_groups,
            self._metadata,
            storage=self._storage.client,
            consumers=self._operators.consumers,
            config=self._config.metadata,
            random=self._random,
            metrics=self._metrics,
        )
        operators, remoting = self._operators, self._remoting
        also = None if remoting is None else remoting.meet(operators.replies, operators.resets)
        self._operators.register(self._edge, self._methods, also)
        self._windows = self._window_collector() if self._window_options is not None else None

    def _serve_plugins(self) -> None:
        parts = PluginParts(
            boot_id=self._identity.boot_id,
            cluster=self._cluster,
            operations=self._operators.operations,
            calls=self._calls,
            random=self._random,
            audit=self.audit,
        )
        for plugin in self._plugins:
            plugin.register(self._methods(), parts)

    def _broker_channel(self, endpoints: Sequence[str]) -> Channel:
        return self._network.broker_channels(endpoints, PeerHeaders(self.view, self._clock))

    def _methods(self, edge: Methods | None = None) -> Methods:
        """Return where rare RPCs are put: their callers are checked, their failures contained."""
        contained = ContainingEdge(edge or self._edge, self.requests)
        return GuardedMethods(contained, self.access, self.view, handles=self.handles)

    def _window_collector(self) -> WindowCollector:
        identity, timeout_s = self._identity, self._config.send.timeout_ms / 1000
        assert self._window_options is not None, "windows are not wanted"
        own = OwnWindows(
            identity.node_id,
            identity.rack,
            self.sessions,
            recorder=self._calls.recorder,
            clock=self._clock,
            metrics=self._metrics,
        )
        return WindowCollector(
            identity.node_id,
            self.view,
            channels=self._storage.channels,
            operations=self._operators.operations,
            sends=InternalSends(self._sender, identity.node_id, timeout_s),
            own=own,
            runtime=self._runtime,
            options=self._window_options,
        )
