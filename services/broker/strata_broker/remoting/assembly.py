"""The remoting protocol of one broker, put together.

Its clients come by a port of its own, by the port for gRPC clients, or by both.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.base.config import BrokerConfig
from strata_broker.base.metrics import METRICS
from strata_broker.base.shares import CallShares, most_each
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.producers import Producers
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.replies import Replies
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.requests import host_of
from strata_broker.receives.deliverable import DeliverableLooks
from strata_broker.remoting.addresses import RemotingAddresses
from strata_broker.remoting.admin.assembly import AdminParts, with_admin
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.assignments import RemotingAssignments
from strata_broker.remoting.batch_acks import RemotingBatchAcks
from strata_broker.remoting.consumers import RemotingConsumers
from strata_broker.remoting.dispatcher import RemotingDispatcher
from strata_broker.remoting.exchange import RemotingPeer
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.given_up import GivenUpMessages
from strata_broker.remoting.incoming_messages import IncomingMessages
from strata_broker.remoting.inflating import BodyInflater
from strata_broker.remoting.last_tries import LastTries
from strata_broker.remoting.listener import RemotingListener
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.offsets import RemotingOffsets
from strata_broker.remoting.place_reads import PlaceReads
from strata_broker.remoting.pop_looks import RemotingPopLooks
from strata_broker.remoting.pops import RemotingPops
from strata_broker.remoting.position_resets import PositionResets
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.producer_groups import ProducerGroups
from strata_broker.remoting.pulls import RemotingPulls
from strata_broker.remoting.queue_locks import QueueLocks
from strata_broker.remoting.recalls import RemotingRecalls
from strata_broker.remoting.replies import RemotingReplies
from strata_broker.remoting.requesters import Requesters
from strata_broker.remoting.retry_copies import RetryCopies
from strata_broker.remoting.routes import RemotingRoutes
from strata_broker.remoting.send_backs import SendBacks
from strata_broker.remoting.sends import RemotingSends
from strata_broker.remoting.subscription_room import SubscriptionRoom
from strata_broker.remoting.transactions import RemotingTransactions
from strata_broker.sends.letter_sends import LetterSends
from strata_broker.sends.send import Sender
from strata_edge.handover import HandedConnection, Handover
from strata_edge.ports import HotHandler
from strata_remoting import Store
from strata_runtime.backoff import Random
from strata_runtime.listening import endpoint_of

_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - names no machine


@dataclass(frozen=True, slots=True)
class SendParts:
    """Parts of a broker that sends work with.

    Attributes:
        sender: stages messages of the broker's own.
        producers: that can be asked for the decision on a transaction.
        random: numbers in [0, 1).
    """

    sender: Sender
    producers: Producers
    random: Random


@dataclass(frozen=True, slots=True)
class RemotingParts:
    """Parts of a broker that the remoting protocol works with.

    Attributes:
        host: under which clients reach the broker.
        face: the broker's handlers.
        provisioner: finds and makes topics.
        sessions: of clients.
        runtime: configuration, clock and counters.
        sending: parts of sends.
        looks: of what can be popped.
    """

    host: str
    face: MessagingFace
    provisioner: Provisioner
    sessions: Sessions
    runtime: CallRuntime
    sending: SendParts
    looks: DeliverableLooks


def new_remoting(
    host: str,
    hot: HotHandler,
    provisioner: Provisioner,
    *,
    sessions: Sessions,
    runtime: CallRuntime,
    random: Random,
    sender: Sender,
    producers: Producers,
    looks: DeliverableLooks,
    handover: Handover | None,
) -> RemotingPort | None:
    """Return the remoting protocol with its ports; None: the configuration wants none.

    Args:
        host: under which clients reach the broker.
        hot: takes sends.
        provisioner: finds and makes topics.
        sessions: of clients.
        runtime: configuration, clock and counters.
        random: numbers in [0, 1).
        sender: stages messages of the broker's own.
        producers: that can be asked for the decision on a transaction.
        looks: of what can be popped.
        handover: gives its connections on the port for gRPC clients away; None: it cannot.
    """
    handover = _wanted(handover, runtime.config)
    if runtime.config.remoting.port is None and handover is None:
        return None
    face = MessagingFace(hot)
    remoting = RemotingPort(
        RemotingParts(
            host,
            face,
            provisioner,
            sessions,
            runtime,
            SendParts(sender, producers, random),
            looks,
        )
    )
    if handover is not None:
        handover.to(remoting.take)
    return remoting


def _queue_locks(runtime: CallRuntime) -> QueueLocks:
    section = runtime.config.remoting
    return QueueLocks(
        runtime.clock,
        lock_ms=section.lock_ms,
        max_locks=section.max_locks,
        max_locks_per_client=section.max_locks_per_client,
        max_locks_per_address=section.max_locks_per_address,
        metrics=runtime.metrics,
    )


def _batch_acks(face: MessagingFace, view: MetadataView, runtime: CallRuntime) -> RemotingBatchAcks:
    config = runtime.config
    return RemotingBatchAcks(
        face,
        view,
        runtime.handles,
        max_entries=config.ack.max_entries,
        max_json_bytes=config.remoting.max_json_bytes,
    )


def _incoming(runtime: CallRuntime) -> IncomingMessages:
    """Return what reads messages from requests."""
    config = runtime.config
    section = config.remoting
    return IncomingMessages(
        BodyInflater(config.send.max_body_bytes, section.max_inflated_bytes, runtime.metrics),
        runtime.clock,
        max_messages=config.send.max_messages_per_request,
        cluster_name=section.cluster_name,
    )


def _wanted(handover: Handover | None, config: BrokerConfig) -> Handover | None:
    """Return the way for connections on the port for gRPC clients; None: there is to be none.

    Remoting clients of a topic have to meet at one broker. So a route has to name a port that leads
    to this broker alone.
    """
    section = config.remoting
    if handover is None or section.client_port == "off":
        return None
    if section.port is not None:
        return handover
    is_virtual = section.client_port == "auto" and bool(config.route.advertised_endpoint)
    return None if handover.is_port_shared or is_virtual else handover


class RemotingPort:
    """See the module docstring.

    Attributes:
        face: takes the broker's handlers.
        operator_face: takes those for operators.

    Args:
        parts: of the broker.
    """

    def __init__(self, parts: RemotingParts) -> None:
        self.operator_face = OperatorFace()
        self._host = parts.host
        self._has_port = parts.runtime.config.remoting.port is not None
        self.face = parts.face
        self._store = Store.of(parts.host, 0)
        view = parts.provisioner.view
        self._addresses = RemotingAddresses(view)
        self._requesters = Requesters(parts.runtime.config.remoting.reply_timeout_ms)
        self._looks = RemotingPopLooks(
            parts.face,
            view,
            parts.looks,
            config=parts.runtime.config,
            metrics=parts.runtime.metrics,
            store=lambda: self._store,
        )
        self._listener = self._new_listener(parts, view)

    def _new_listener(self, parts: RemotingParts, view: MetadataView) -> RemotingListener:
        runtime, face = parts.runtime, parts.face
        config, clock, metrics = runtime.config, runtime.clock, runtime.metrics
        section = config.remoting
        metrics.declare(METRICS)
        members = RemotingMembers(
            parts.sessions,
            clock,
            member_timeout_ms=section.member_timeout_ms,
            notice_pause_ms=section.member_notice_pause_ms,
            room=SubscriptionRoom(section, metrics),
            metrics=metrics,
        )
        locks = _queue_locks(runtime)
        routes = RemotingRoutes(
            face, parts.provisioner, self._addresses, cluster_name=section.cluster_name
        )
        producer_groups = self._producer_groups(parts, view)
        updates = PositionUpdates()
        self._resets = PositionResets(members, updates, clock=clock, metrics=metrics)
        consumers = RemotingConsumers(
            face,
            members,
            locks,
            producer_groups=producer_groups,
            updates=updates,
            requesters=self._requesters,
            max_groups=section.max_groups_per_client,
            max_json_bytes=section.max_json_bytes,
        )
        reads = PlaceReads(face, view)
        letters = LetterSends(parts.sending.sender, view, config.send.timeout_ms / 1000)
        given_up = GivenUpMessages(letters, reads, view, metrics=metrics)
        last_tries = LastTries(given_up, locks, view, limits=config.limits())
        sends = self._sends(parts, routes, last_tries, producer_groups)
        pulls = RemotingPulls(face, view, members, resets=self._resets, store=lambda: self._store)
        pops = RemotingPops(face, view, clock, handles=runtime.handles, store=lambda: self._store)
        assignments = RemotingAssignments(view, members, max_json_bytes=section.max_json_bytes)
        self._replies = self._new_replies(runtime, routes.reply_topic)
        handlers = {
            **routes.handlers(),
            **self._replies.handlers(),
            **sends.handlers(),
            **consumers.handlers(),
            **pulls.handlers(),
            **pops.handlers(),
            **self._looks.handlers(),
            **_batch_acks(face, view, runtime).handlers(),
            **assignments.handlers(),
            **RemotingOffsets(face, view, updates, resets=self._resets).handlers(),
            **RemotingRecalls(face).handlers(),
            **RemotingTransactions(face, view, handles=runtime.handles).handlers(),
            **self._send_backs(parts, routes, reads, given_up).handlers(),
        }

        def disconnected(client: RemotingPeer) -> None:
            consumers.disconnected(client)
            pulls.disconnected(client)
            pops.disconnected(client)
            self._looks.disconnected(client)

        admin = self._admin_parts(parts, members, consumers, routes)
        return RemotingListener(
            section.host or parts.host,
            section.port,
            RemotingDispatcher(with_admin(handlers, admin), runtime),
            runtime=runtime,
            disconnected=disconnected,
        )

    def _sends(
        self,
        parts: RemotingParts,
        routes: RemotingRoutes,
        last_tries: LastTries,
        producer_groups: ProducerGroups,
    ) -> RemotingSends:
        return RemotingSends(
            parts.face,
            routes,
            _incoming(parts.runtime),
            store=lambda: self._store,
            last_tries=last_tries,
            producer_groups=producer_groups,
            random=parts.sending.random,
        )

    def _new_replies(self, runtime: CallRuntime, reply_topic: str) -> RemotingReplies:
        config = runtime.config
        section = config.remoting
        most = most_each(section.max_replies_per_client, section.max_replies_per_address)
        return RemotingReplies(
            reply_topic,
            lambda: self.endpoint,
            runtime.clock,
            max_body_bytes=config.send.max_body_bytes,
            shares=CallShares("remoting replies", most, metrics=runtime.metrics),
        )

    def _producer_groups(self, parts: RemotingParts, view: MetadataView) -> ProducerGroups:
        section = parts.runtime.config.remoting
        return ProducerGroups(
            parts.sending.producers,
            view,
            store=lambda: self._store,
            max_groups=section.max_transaction_groups,
            max_groups_per_client=section.max_groups_per_client,
            metrics=parts.runtime.metrics,
        )

    def _send_backs(
        self,
        parts: RemotingParts,
        routes: RemotingRoutes,
        reads: PlaceReads,
        given_up: GivenUpMessages,
    ) -> SendBacks:
        view, runtime = parts.provisioner.view, parts.runtime
        copies = RetryCopies(
            parts.face,
            view,
            handles=runtime.handles,
            earlier=parts.sending.sender.earlier,
            timeout_s=runtime.config.send.timeout_ms / 1000,
        )
        return SendBacks(
            routes, view, reads=reads, given_up=given_up, copies=copies, clock=runtime.clock
        )

    def _admin_parts(
        self,
        parts: RemotingParts,
        members: RemotingMembers,
        consumers: RemotingConsumers,
        routes: RemotingRoutes,
    ) -> AdminParts:
        config = parts.runtime.config
        cluster_name, timeout_ms = config.remoting.cluster_name, config.metadata.call_timeout_ms
        return AdminParts(
            self.operator_face,
            AdminPlaces(parts.provisioner.view, self._addresses, cluster_name, timeout_ms / 1000),
            members,
            consumers,
            routes,
            lambda: self._store,
            parts.host,
            parts.runtime,
        )

    @property
    def endpoint(self) -> str:
        """HOST:PORT for routes and as the address of a nameserver; empty before the start."""
        return self._addresses.own

    def shown(self) -> dict[str, str]:
        """Return what the line of a process that serves says of a port of its own."""
        return {"nameserver": self.endpoint} if self._has_port else {}

    def meet(self, replies: Replies, resets: GroupResets) -> OperatorFace:
        """Meet what tells clients of this broker what other brokers say.

        Args:
            replies: pass replies of consumers on, also to clients of this broker.
            resets: tell of resets of consumer groups.

        Returns:
            The face that takes the handlers for operators.
        """
        resets.taken_by(self._resets)
        replies.taken_by(self._requesters)
        self._replies.passed_by(replies)
        return self.operator_face

    def take(self, given: HandedConnection) -> None:
        """Take a connection that came by the port for gRPC clients."""
        self._listener.take(given)

    async def start(self, endpoint: str) -> None:
        """Take connections; then `endpoint` is known: that of the port of its own, if there is one.

        Args:
            endpoint: HOST:PORT in routes of gRPC: of the port for gRPC clients, or for a broker
                whose own host names no machine.

        Raises:
            ListenError: the address cannot be listened on.
            ConfigError: the certificate cannot be used.
        """
        port = await self._listener.start()
        host = host_of(endpoint) if port is None or self._host in _EVERYWHERE else self._host
        if port is None:
            port = int(endpoint.rpartition(":")[2])
        self._store = Store.of(host, port)
        self._addresses.own = endpoint_of(host, port)

    async def stop(self, grace_s: float) -> None:
        """Listen no longer, answer what is under way for so long, and end all connections."""
        self._looks.end_all()
        await self._listener.stop(grace_s)
