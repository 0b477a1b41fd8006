"""Configuration of a broker: every limit and period with its unit.

Sections become TOML tables. A process that runs more than a broker inherits `BrokerConfig`, or has
the same sections beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.audit import AuditSection
from strata_broker.base.balance_config import BalanceSection
from strata_broker.base.lite_config import LiteSection
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.base.receive_config import (
    AckSection,
    PullSection,
    ReceiveSection,
    RefusalsSection,
)
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.base.table_config import KvSection
from strata_metadata.options import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
)
from strata_mq.requests import DEFAULT_LIMITS, Limits
from strata_runtime.config import Config, Section


class RouteSection(Section):
    """The addresses in routes, to which clients connect."""

    advertised_endpoint: str = Field(
        default="",
        description="host:port that every route names: the brokers' virtual address. Empty: the "
        "queues of a raft group name one live broker, chosen by rendezvous hash.",
    )
    max_cached_routes: int = Field(default=1_024, ge=1, description="Most route answers to cache.")
    max_drain_ms: int = Field(
        default=5_000,
        ge=0,
        description="Time for clients to move to other brokers when the broker stops; at most half "
        "of the time for the whole stop.",
    )


class SendSection(Section):
    """SendMessage."""

    max_body_bytes: int = Field(
        default=DEFAULT_LIMITS.max_body_bytes, ge=1, description="Largest body of a message."
    )
    max_properties_bytes: int = Field(
        default=DEFAULT_LIMITS.max_properties_bytes,
        ge=1,
        description="Largest sum of user properties, tag and keys of a message.",
    )
    max_overhead_bytes: int = Field(
        default=DEFAULT_LIMITS.max_overhead_bytes,
        ge=1,
        description="Largest sum of all fields of a message except its body.",
    )
    max_property_count: int = Field(
        default=DEFAULT_LIMITS.max_property_count,
        ge=1,
        description="Most user properties of a message.",
    )
    max_key_count: int = Field(
        default=DEFAULT_LIMITS.max_key_count, ge=0, le=255, description="Most keys of a message."
    )
    max_message_group_bytes: int = Field(
        default=DEFAULT_LIMITS.max_message_group_bytes,
        ge=1,
        description="A message group must be shorter than this.",
    )
    max_delay_ms: int = Field(
        default=DEFAULT_LIMITS.max_delay_ms, ge=0, description="Longest delay of a message."
    )
    max_messages_per_request: int = Field(
        default=1_024, ge=1, description="Most messages of one request."
    )
    max_bytes_in_flight: int = Field(
        default=128 * 1024 * 1024,
        ge=1,
        description="Most bytes of sends that wait; further sends get TOO_MANY_REQUESTS.",
    )
    max_namespace_bytes_in_flight: int = Field(
        default=96 * 1024 * 1024, ge=1, description="The same for one namespace."
    )
    max_raft_group_bytes_in_flight: int = Field(
        default=64 * 1024 * 1024, ge=1, description="The same for one raft group."
    )
    max_bytes_in_flight_per_client: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="The same for one client and for one connection. Sends count for it while "
        "more than an eighth of `max_bytes_in_flight` waits.",
    )
    max_bytes_in_flight_per_address: int = Field(
        default=96 * 1024 * 1024, ge=1, description="The same for one client address."
    )
    max_batches_per_call: int = Field(
        default=64, ge=1, description="Most raft groups in one Append call."
    )
    max_bytes_per_call: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="The same in bytes; a single batch is always allowed.",
    )
    repeat_window_ms: int = Field(
        default=600_000,
        ge=0,
        description="Time after a topic got more queues, or a queue or a slot moved, for which the "
        "broker looks in the former raft groups for an earlier send of an older "
        "message; 0: never.",
    )
    repeat_slack_ms: int = Field(
        default=1_000,
        ge=0,
        description="Most time that producers' clocks may be ahead for `repeat_window_ms`.",
    )
    max_repeat_lookups: int = Field(
        default=256, ge=1, description="Most messages looked up at once; further messages wait."
    )
    timeout_ms: int = Field(
        default=3_000, ge=1, description="Time limit of a send whose client set no deadline."
    )
    large_request_bytes: int = Field(
        default=256 * 1024,
        ge=1,
        description="Requests from this size on are large: they are hashed outside the event loop, "
        "and clients take turns with them.",
    )
    max_large_bytes_at_once: int = Field(
        default=4 * 1024 * 1024,
        ge=1,
        description="Most bytes of large requests that are hashed or written at the same time; "
        "a single request is always allowed.",
    )
    max_large_bytes_waiting: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Most bytes of large requests that wait or have their turn; further ones get "
        "TOO_MANY_REQUESTS.",
    )
    large_turn_ms: int = Field(
        default=100,
        ge=1,
        description="A large request counts for `max_large_bytes_at_once` no longer than this: "
        "its raft group is slow.",
    )


class TransactionSection(Section):
    """Transactional messages that wait for their producer's decision."""

    first_check_ms: int = Field(
        default=6_000,
        ge=0,
        description="Time until a producer is first asked, unless the message sets it.",
    )
    max_first_check_ms: int = Field(
        default=3_600_000, ge=0, description="Longest such time that a message may set."
    )
    max_checks_waiting: int = Field(
        default=1_024,
        ge=1,
        description="Most checks that wait for a producer's stream; further checks come later.",
    )
    max_check_bytes_waiting: int = Field(
        default=32 * 1024 * 1024, ge=1, description="Most bytes of messages of these checks."
    )
    check_patience_ms: int = Field(
        default=5_000,
        ge=1,
        description="Longest wait of a check for a stream; then it is dropped.",
    )
    max_given_up_waiting: int = Field(
        default=1_024,
        ge=1,
        description="Most transactions without checks left that wait to become dead letters.",
    )


class PeerSection(Section):
    """Calls between brokers on behalf of operators: which clients they hold."""

    call_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time limit of one call; a broker that is late is skipped."
    )
    max_calls: int = Field(default=32, ge=1, description="Most concurrent calls to other brokers.")
    max_clients_per_answer: int = Field(
        default=10_000, ge=1, description="Most clients in one broker's answer."
    )
    command_timeout_ms: int = Field(
        default=5_000, ge=1, description="Time limit for a client to answer a command."
    )
    max_commands: int = Field(
        default=256, ge=1, description="Most commands that clients have not answered."
    )


class CallsSection(Section):
    """Calls of clients except sends, receives and acks, which have their own limits."""

    max_in_flight: int = Field(
        default=20_000,
        ge=1,
        description="Most concurrent calls; further calls get TOO_MANY_REQUESTS.",
    )
    max_in_flight_per_client: int = Field(
        default=5_000, ge=1, description="The same for one client and for one connection."
    )
    max_in_flight_per_address: int = Field(
        default=15_000, ge=1, description="The same for one client address."
    )
    max_timeout_ms: int = Field(
        default=30_000,
        ge=1_000,
        description="Longest time of any call, even if its client set a later deadline.",
    )


class TelemetrySection(Section):
    """The settings stream."""

    max_streams: int = Field(default=20_000, ge=1, description="Most open streams.")
    max_streams_per_address: int = Field(
        default=10_000, ge=1, description="Most open streams from one address."
    )
    max_settings_bytes: int = Field(
        default=128 * 1024, ge=1, description="Largest settings that a client may send."
    )
    max_frames_queued: int = Field(
        default=64, ge=1, description="Most frames that wait for one client to read."
    )
    max_bytes_queued: int = Field(
        default=1024 * 1024,
        ge=1,
        description="The same in bytes; a single frame is always allowed.",
    )
    node_repeat_ms: tuple[int, ...] = Field(
        default=(500, 1_500, 4_000),
        description="Pause after which settings are pushed again to Node clients.",
    )
    push_interval_ms: int = Field(
        default=1_000,
        ge=1,
        description="Shortest time between two pushes of consumer group changes to a client.",
    )
    lite_subscription_quota: int = Field(
        default=2_000, ge=1, description="Most lite topics of one client."
    )
    max_lite_topic_bytes: int = Field(
        default=DEFAULT_LIMITS.max_lite_topic_bytes,
        ge=1,
        description="Longest name of a lite topic.",
    )
    client_metrics_endpoint: str = Field(
        default="",
        description="host:port of an OpenTelemetry collector (OTLP over gRPC) to which clients "
        "push their own metrics; empty: clients collect no metrics.",
    )


class SessionSection(Section):
    """Clients that are connected."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "report_period_ms": "report_interval_ms",
    }

    max_clients: int = Field(default=50_000, ge=1, description="Most clients to remember.")
    max_clients_per_address: int = Field(
        default=25_000, ge=1, description="Most clients from one address that are remembered."
    )
    max_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1,
        description="Most bytes of clients' settings to remember; further settings are not kept.",
    )
    max_subscriptions_per_client: int = Field(
        default=256, ge=1, description="Most topics of one client to remember."
    )
    silent_ms: int = Field(
        default=15_000,
        ge=1,
        description="Time after which a silent client without a stream or receive counts as gone.",
    )
    expire_ms: int = Field(
        default=120_000, ge=1, description="Time after which any silent client counts as gone."
    )
    report_interval_ms: int = Field(
        default=5_000,
        ge=1,
        description="Time between two reports of live clients to storage nodes.",
    )
    report_timeout_ms: int = Field(
        default=1_000,
        ge=1,
        description="Time limit of one report; a silent node delays its next reports.",
    )


class QuotasSection(Section):
    """Limits of namespaces and topics without limits of their own; 0: no limit."""

    namespace_messages_per_s: int = Field(
        default=0, ge=0, description="Messages that the producers of a namespace may send."
    )
    namespace_bytes_per_s: int = Field(
        default=0, ge=0, description="Bytes that the producers of a namespace may send."
    )
    namespace_topics: int = Field(
        default=0, ge=0, description="Most topics of a namespace, without dead-letter topics."
    )
    namespace_consumer_groups: int = Field(
        default=0, ge=0, description="Most consumer groups of a namespace."
    )
    namespace_connections: int = Field(
        default=0,
        ge=0,
        description="Most settings streams of a namespace's clients, one per client and broker.",
    )
    topic_messages_per_s: int = Field(
        default=0, ge=0, description="Messages that may be sent to one topic."
    )
    topic_bytes_per_s: int = Field(
        default=0, ge=0, description="Bytes that may be sent to one topic."
    )
    burst_ms: int = Field(
        default=1_000, ge=1, description="Burst that is allowed after a pause, as time at the rate."
    )
    max_tracked: int = Field(
        default=10_000, ge=2, description="Most namespaces and topics whose rate is measured."
    )


class BrokerConfig(Config):
    """All of a broker."""

    plugins: tuple[str, ...] = Field(
        default=(), description="Plugins to load, comma-separated: kv."
    )
    access_control: AccessControlSection = AccessControlSection()
    audit: AuditSection = AuditSection()
    route: RouteSection = RouteSection()
    send: SendSection = SendSection()
    transaction: TransactionSection = TransactionSection()
    receive: ReceiveSection = ReceiveSection()
    pull: PullSection = PullSection()
    ack: AckSection = AckSection()
    peer: PeerSection = PeerSection()
    balance: BalanceSection = BalanceSection()
    calls: CallsSection = CallsSection()
    refusals: RefusalsSection = RefusalsSection()
    storage_client: StorageClientSection = StorageClientSection()
    telemetry: TelemetrySection = TelemetrySection()
    session: SessionSection = SessionSection()
    metadata: MetadataSection = MetadataSection()
    quotas: QuotasSection = QuotasSection()
    kv: KvSection = KvSection()
    lite: LiteSection = LiteSection()
    remoting: RemotingSection = RemotingSection()

    @field_validator("plugins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    def metadata_client(self) -> MetadataClientOptions:
        """Return the options of calls to nameservers."""
        return MetadataClientOptions(
            call_timeout_ms=self.metadata.call_timeout_ms,
            try_timeout_ms=self.metadata.try_timeout_ms,
            first_retry_ms=self.metadata.first_retry_ms,
            max_retry_ms=self.metadata.max_retry_ms,
        )

    def metadata_follower(self) -> MetadataFollowerOptions:
        """Return the options of following the metadata."""
        return MetadataFollowerOptions(
            first_response_timeout_ms=self.metadata.try_timeout_ms,
            silence_timeout_ms=self.metadata.silence_timeout_ms,
            fallback_after_ms=self.metadata.fallback_after_ms,
            first_retry_ms=self.metadata.first_retry_ms,
            max_retry_ms=self.metadata.max_retry_ms,
        )

    def presence(self) -> PresenceOptions:
        """Return the options of this broker's heartbeats."""
        return PresenceOptions(
            interval_ms=self.metadata.heartbeat_ms,
            timeout_ms=self.metadata.heartbeat_timeout_ms,
            register_timeout_ms=self.metadata.call_timeout_ms,
        )

    def limits(self) -> Limits:
        """Return the limits that requests are checked against."""
        return Limits(
            max_body_bytes=self.send.max_body_bytes,
            max_properties_bytes=self.send.max_properties_bytes,
            max_overhead_bytes=self.send.max_overhead_bytes,
            max_property_count=self.send.max_property_count,
            max_key_count=self.send.max_key_count,
            max_message_group_bytes=self.send.max_message_group_bytes,
            max_delay_ms=self.send.max_delay_ms,
            min_receive_invisible_ms=self.receive.min_invisible_ms,
            max_invisible_ms=self.receive.max_invisible_ms,
            min_polling_ms=self.receive.min_polling_ms,
            max_polling_ms=self.receive.max_polling_ms,
            max_receive_batch=self.receive.max_messages,
            max_lite_topic_bytes=self.telemetry.max_lite_topic_bytes,
        )
