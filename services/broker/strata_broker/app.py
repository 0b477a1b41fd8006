"""A broker as one object: everything it is made of, put together in one place.

The order of start: metadata first (a broker that knows no topic serves nobody), then the edge,
then the registration, so that no route names a broker that does not listen. Stop is the reverse:
streams are ended so that clients go elsewhere, calls under way may finish, channels close last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import google_crc32c

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError, Channel
from strata_broker.ack import Acknowledger, LeaseKeeper
from strata_broker.acks import Acker
from strata_broker.append import Appender
from strata_broker.backoff import Random
from strata_broker.budget import SendBudget
from strata_broker.config import BrokerConfig
from strata_broker.deliver import Deliverer
from strata_broker.drops import Dropper
from strata_broker.hot import HotCalls
from strata_broker.liveness import LivenessReporter
from strata_broker.metadata import MetadataView
from strata_broker.metadata_watch import MetaClient, MetadataFollower, MetaRefusedError
from strata_broker.metrics import METRICS
from strata_broker.operations import Operations
from strata_broker.provision import Provisioner
from strata_broker.receive import Receiver
from strata_broker.recorder import Recorder
from strata_broker.registration import Registration
from strata_broker.route import Routes
from strata_broker.send import Sender
from strata_broker.servicers import admin, messaging
from strata_broker.servicers.admin import AdminServicer
from strata_broker.servicers.messaging import MessagingServicer
from strata_broker.sessions import Sessions
from strata_broker.storage_client import ChannelFactory, LeaderMap, StorageChannels, StorageClient
from strata_broker.telemetry import Telemetry
from strata_edge.health import Health
from strata_edge.ports import Edge
from strata_runtime.clock import Clock
from strata_runtime.config import Config
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks

OnFatal = Callable[[str, BaseException], None]


class BrokerStartError(Exception):
    """The broker cannot serve; the text says what it waited for."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who this broker is.

    Attributes:
        node_id: its name among the nodes.
        boot_id: chosen at random when the process starts; names its append batches.
        host: address that clients reach it under, without port; the port is the edge's.
    """

    node_id: str
    boot_id: int
    host: str


class BrokerApp:
    """See the module docstring; a `Service` of the runtime's lifecycle.

    Args:
        identity: who this broker is.
        config: its sections.
        edge: not yet started; the broker's methods are added to it here.
        meta: channel to the nameserver; closed by `stop`.
        storage_channels: makes a channel to a storage node from its registered endpoints.
        clock: time.
        random: numbers in [0, 1).
        metrics: where everything is counted.
        on_fatal: told when a background task failed.
        shown_config: what `GetConfig` shows: the whole process's; None: `config`.
    """

    name = "broker"

    def __init__(
        self,
        identity: BrokerIdentity,
        config: BrokerConfig,
        edge: Edge,
        meta: Channel,
        storage_channels: ChannelFactory,
        clock: Clock,
        random: Random,
        metrics: Metrics,
        on_fatal: OnFatal,
        *,
        shown_config: Config | None = None,
    ) -> None:
        self._identity = identity
        self.port = 0
        self.endpoint = ""
        self._config = config
        self._edge = edge
        self._random = random
        self._meta_channel = meta
        self._log = get_logger("broker")
        metrics.declare(METRICS)
        self._tasks = Tasks("broker", on_fatal, max_tasks=_max_tasks(config))
        self.view = MetadataView()
        self.sessions = Sessions(config.session, clock)
        self._meta = MetaClient(meta, config.metadata, random)
        self._follower = MetadataFollower(meta, self.view, config.metadata, random)
        self._channels = StorageChannels(self.view, storage_channels)
        self._leaders = LeaderMap(self.view)
        storage = StorageClient(
            self._leaders, self._channels, config.storage_client, clock, random, metrics
        )
        self._provisioner = Provisioner(self.view, self._meta, config.metadata, self._tasks)
        self._recorder = Recorder(clock, metrics)
        acker = Acker(
            self._leaders,
            self._channels,
            config.storage_client,
            clock,
            random,
            self._tasks,
            metrics,
        )
        self.liveness = LivenessReporter(
            identity.boot_id, self.view, self._channels, self.sessions, config.session
        )
        self._routes = Routes(self.view, config.route, config.route.advertised_endpoint)
        self._telemetry = Telemetry(self.view, self.sessions, config, self._tasks, metrics)
        self._deliverer = Deliverer(
            storage, acker, config, identity.host, clock, self._recorder, metrics
        )
        self._receiver = self._make_receiver(storage, clock, metrics)
        acknowledger = Acknowledger(
            self.view, self._provisioner, acker, config, clock, self._recorder
        )
        hot = HotCalls(self._make_sender(clock, random, metrics), self._receiver, acknowledger)
        self._serve_messaging(hot, storage, clock)
        self._dropper = Dropper(self.view, self._meta, storage, config.metadata, random, metrics)
        AdminServicer(
            self.view,
            Operations(self.view, self._meta, storage, self._dropper, self.sessions, config),
            self.sessions,
            shown_config or config,
            version("strata-broker"),
        ).register(edge)
        self._health = Health(edge)
        self._set_health(serving=False)
        self._add_gauges(metrics)

    def _make_sender(self, clock: Clock, random: Random, metrics: Metrics) -> Sender:
        config = self._config
        appender = Appender(
            self._identity.boot_id,
            self._leaders,
            self._channels,
            config,
            google_crc32c.value,
            clock,
            random,
            self._tasks,
            metrics,
        )
        return Sender(
            self.view,
            self._provisioner,
            appender,
            SendBudget(config.send, metrics),
            config,
            google_crc32c.value,
            clock,
            self._tasks,
            self._recorder,
        )

    def _make_receiver(self, storage: StorageClient, clock: Clock, metrics: Metrics) -> Receiver:
        return Receiver(
            self.view,
            self._provisioner,
            storage,
            self._deliverer,
            self.sessions,
            self._config,
            clock,
            self._tasks,
            self._recorder,
            metrics,
        )

    def _serve_messaging(self, hot: HotCalls, storage: StorageClient, clock: Clock) -> None:
        MessagingServicer(
            self.view,
            self._provisioner,
            self._routes,
            LeaseKeeper(self.view, self._provisioner, storage, self._config),
            self._telemetry,
            self.sessions,
            self._config,
            clock,
            self._recorder,
        ).register(self._edge, hot)

    @property
    def tasks(self) -> Tasks:
        """The broker's background tasks; for tests and the list of long-lived tasks."""
        return self._tasks

    async def start(self) -> None:
        """Serve; then `port` and `endpoint` say where. A failed start leaves nothing running.

        Raises:
            BrokerStartError: the nameserver gives no metadata, or refuses the broker.
            OSError: the edge cannot listen.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self) -> None:
        self._tasks.spawn("follow metadata", self._follower.run())
        # Revision 0 is reached by the first snapshot.
        timeout_s = self._config.metadata.call_timeout_ms / 1000
        if not await self.view.wait_for_revision(0, timeout_s):
            raise BrokerStartError(f"no metadata from the nameserver within {timeout_s:.1f} s")
        self.port = await self._edge.start()
        self.endpoint = self._config.route.advertised_endpoint or _join(
            self._identity.host, self.port
        )
        self._routes.set_own_endpoint(self.endpoint)
        self._deliverer.set_store_host(self.endpoint)
        registration = await self._register()
        self._tasks.spawn("heartbeat", registration.keep())
        self._tasks.spawn("repeat drops", self._dropper.run())
        self._tasks.spawn("push settings", self._telemetry.push_changes())
        self._tasks.spawn("report clients", self.liveness.run())
        self._set_health(serving=True)
        self._log.info("broker serves", endpoint=self.endpoint, node_id=self._identity.node_id)

    async def stop(self, grace_s: float) -> None:
        """Take no new call, let those under way finish within the grace, free everything."""
        self._set_health(serving=False)
        self._telemetry.end_all()
        self._receiver.end_all()
        await self._edge.stop(grace_s)
        await self._tasks.stop()
        await self._channels.close()
        await self._meta_channel.close()

    async def _register(self) -> Registration:
        node = meta_pb2.Node(
            node_id=self._identity.node_id,
            kind=meta_pb2.NODE_KIND_BROKER,
            endpoints=[self.endpoint],
            advertised_endpoint=self.endpoint,
            boot_id=self._identity.boot_id,
        )
        registration = Registration(node, self._meta, self._config.metadata, self._random)
        try:
            await registration.register()
        except (MetaRefusedError, AngeliaError, TimeoutError) as failure:
            raise BrokerStartError(f"the nameserver did not register it: {failure}") from failure
        return registration

    def _set_health(self, *, serving: bool) -> None:
        for service in ("", messaging.SERVICE, admin.SERVICE):
            self._health.set(service, serving=serving)

    def _add_gauges(self, metrics: Metrics) -> None:
        sessions, view = self.sessions, self.view
        metrics.gauge("rocketmq_producer_connections", lambda: sessions.count(consumers=False))
        metrics.gauge("rocketmq_consumer_connections", lambda: sessions.count(consumers=True))
        metrics.gauge("strata_broker_clients", lambda: len(sessions))
        metrics.gauge("strata_broker_topics", lambda: len(view.topics()))
        metrics.gauge("strata_broker_metadata_revision", lambda: view.revision)


def _max_tasks(config: BrokerConfig) -> int:
    """Return room for every receive, stream and creation, and the loops of a large cluster."""
    loops = 10_000
    return (
        config.receive.max_parked
        + config.telemetry.max_streams
        + config.metadata.max_creations_in_flight
        + config.send.max_bytes_in_flight // 1024
        + loops
    )


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
