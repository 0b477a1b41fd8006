"""Configuration of a broker: every limit and period with its unit.

Sections become TOML tables; a process that holds more than a broker inherits `BrokerConfig` or has
the same sections beside its own.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from strata_broker.base.receive_config import AckSection, PullSection, ReceiveSection
from strata_metadata.options import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
)
from strata_mq.requests import Limits
from strata_runtime.config import Config, Section

_DAY_MS = 86_400_000


class RouteSection(Section):
    """What clients are told to connect to."""

    advertised_endpoint: str = Field(
        default="",
        description="host:port that every route names, the tier's virtual address. Empty: each "
        "raft group's queues name one live broker, chosen by rendezvous hash.",
    )
    max_cached_routes: int = Field(default=1_024, ge=1, description="Answers kept ready.")
    max_drain_ms: int = Field(
        default=5_000,
        ge=0,
        description="When the broker stops: time for clients to go to other brokers, at most half "
        "of what there is for the whole stop.",
    )


class SendSection(Section):
    """SendMessage."""

    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1, description="Body of a message.")
    max_properties_bytes: int = Field(
        default=16_384, ge=1, description="User properties, tag and keys of a message together."
    )
    max_overhead_bytes: int = Field(
        default=32_768, ge=1, description="All of a message but its body, every field counted."
    )
    max_property_count: int = Field(default=128, ge=1, description="User properties of a message.")
    max_key_count: int = Field(default=255, ge=0, le=255, description="Keys of a message.")
    max_message_group_bytes: int = Field(
        default=64, ge=1, description="A message group must be shorter than this."
    )
    max_delay_ms: int = Field(
        default=40 * _DAY_MS, ge=0, description="Furthest delivery time of a delay message."
    )
    max_messages_per_request: int = Field(default=1_024, ge=1, description="Messages at once.")
    max_bytes_in_flight: int = Field(
        default=128 * 1024 * 1024,
        ge=1,
        description="Requests taken and not yet answered; beyond it TOO_MANY_REQUESTS.",
    )
    max_namespace_bytes_in_flight: int = Field(
        default=96 * 1024 * 1024, ge=1, description="The same for one namespace."
    )
    max_raft_group_bytes_in_flight: int = Field(
        default=64 * 1024 * 1024, ge=1, description="The same for one raft group."
    )
    max_batches_per_call: int = Field(
        default=64, ge=1, description="Raft groups in one Append call."
    )
    max_bytes_per_call: int = Field(
        default=8 * 1024 * 1024, ge=1, description="The same in bytes, unless it is one batch."
    )
    repeat_window_ms: int = Field(
        default=600_000,
        ge=0,
        description="How long after a topic got queues, or one moved, a message that was born "
        "before is looked for where it may have been stored then; 0: never.",
    )
    repeat_slack_ms: int = Field(
        default=1_000, ge=0, description="What clocks of producers may be ahead for that."
    )
    max_repeat_lookups: int = Field(
        default=256, ge=1, description="Messages looked for at once; further ones are stored."
    )
    timeout_ms: int = Field(
        default=3_000, ge=1, description="Time for a send whose client set no deadline."
    )


class TransactionSection(Section):
    """Transactional messages that wait for their producer's word."""

    first_check_ms: int = Field(
        default=6_000,
        ge=0,
        description="When a producer is first asked what became of a transaction, unless its "
        "message says so itself.",
    )
    max_first_check_ms: int = Field(
        default=3_600_000, ge=0, description="The latest that a message may say."
    )
    max_checks_waiting: int = Field(
        default=1_024, ge=1, description="Checks that wait until a producer's stream takes them."
    )
    max_check_bytes_waiting: int = Field(
        default=32 * 1024 * 1024, ge=1, description="Messages of these checks."
    )
    check_patience_ms: int = Field(
        default=5_000,
        ge=1,
        description="A check that no stream took for this long is left to the next one.",
    )
    max_given_up_waiting: int = Field(
        default=1_024,
        ge=1,
        description="Transactions whose checks are used up and that become dead letters next.",
    )


class PeerSection(Section):
    """What brokers ask each other for operators: which clients they hold."""

    call_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time for one call; then the broker is passed over."
    )
    max_calls: int = Field(default=32, ge=1, description="Calls to other brokers at once.")
    max_clients_per_answer: int = Field(
        default=10_000, ge=1, description="Clients that one broker tells of at once."
    )
    command_timeout_ms: int = Field(
        default=5_000, ge=1, description="Time for a client to answer a command."
    )
    max_commands: int = Field(
        default=256, ge=1, description="Commands that clients have not answered."
    )


class CallsSection(Section):
    """Calls of clients other than sends, receives and acks, whose bounds are their own."""

    max_in_flight: int = Field(
        default=20_000, ge=1, description="Calls under way; beyond it TOO_MANY_REQUESTS."
    )
    max_timeout_ms: int = Field(
        default=30_000,
        ge=1_000,
        description="Longest time for any call, whatever deadline its client set.",
    )


class RefusalsSection(Section):
    """Calls that are refused because of what their client sent: bad handles, illegal messages."""

    max_entries_per_second: int = Field(
        default=10_000,
        ge=1,
        description="Refused entries of sends, receives and acks of one connection. Beyond it the "
        "next calls of the connection wait.",
    )
    entries_per_call: int = Field(
        default=10, ge=0, description="What a refused call counts beside its entries."
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Connections whose refusals are remembered."
    )
    max_waiting: int = Field(
        default=1_024,
        ge=1,
        description="Calls of all connections that wait. Beyond it TOO_MANY_REQUESTS.",
    )
    max_bytes_waiting: int = Field(
        default=16 * 1024 * 1024, ge=1_024, description="The same in bytes of their requests."
    )


class StorageClientSection(Section):
    """Calls to storage nodes."""

    storage_transport: Literal["tcp", "http2"] = Field(
        default="tcp", description="How storage nodes are called: Angelia's own, or gRPC."
    )
    storage_codec: Literal["protobuf", "json", "avro"] = Field(
        default="protobuf", description="Encoding of calls to storage nodes."
    )
    connect_timeout_ms: int = Field(
        default=500, ge=1, description="Time to connect; then the next replica is asked."
    )
    first_retry_ms: int = Field(default=5, ge=1, description="First pause before a repeat.")
    max_retry_ms: int = Field(default=100, ge=1, description="Longest pause before a repeat.")
    max_parked_retry_ms: int = Field(
        default=1_000,
        ge=1,
        description="The same for receives that wait; a new leader's word ends the pause anyway.",
    )
    call_timeout_ms: int = Field(
        default=3_000, ge=1, description="Time for a call whose client set no deadline."
    )
    try_timeout_ms: int = Field(
        default=1_000,
        ge=1,
        description="Time of one try where other replicas could lead; then the next is asked.",
    )
    former_leader_grace_ms: int = Field(
        default=100,
        ge=0,
        description="A call to a node that leads no more may still be answered for this long.",
    )
    distrust_ms: int = Field(
        default=500,
        ge=0,
        description="Refusals that name a node as leader are not believed this long after it "
        "was silent.",
    )
    max_watches: int = Field(
        default=1_000, ge=1, description="Storage nodes that tell what they lead."
    )
    max_watch_retry_ms: int = Field(
        default=500, ge=1, description="Longest pause before a lost watch is opened again."
    )
    spread_from_groups: int = Field(
        default=8,
        ge=1,
        description="A topic that so many consumer groups read from a raft group is read from "
        "all its replicas.",
    )
    spread_above_bytes_per_s: int = Field(
        default=8 * 1024 * 1024, ge=1, description="Likewise, one of which more is read."
    )
    max_spread_topics: int = Field(
        default=10_000, ge=1, description="Topics of raft groups whose reads are counted."
    )
    max_acks_per_call: int = Field(default=4_096, ge=1, description="Acks in one call.")


class TelemetrySection(Section):
    """The settings stream."""

    max_streams: int = Field(default=20_000, ge=1, description="Open streams.")
    max_streams_per_address: int = Field(
        default=10_000, ge=1, description="Open streams from one address."
    )
    max_settings_bytes: int = Field(
        default=128 * 1024, ge=1, description="What a client may say of itself."
    )
    max_frames_queued: int = Field(
        default=64, ge=1, description="Frames that wait for one client to read."
    )
    max_bytes_queued: int = Field(
        default=1024 * 1024, ge=1, description="The same in bytes, unless it is one frame."
    )
    node_repeat_ms: tuple[int, ...] = Field(
        default=(500, 1_500, 4_000), description="When settings are pushed again to Node clients."
    )
    push_interval_ms: int = Field(
        default=1_000,
        ge=1,
        description="A client is told of changes of its consumer group at most this often.",
    )
    lite_subscription_quota: int = Field(
        default=2_000, ge=1, description="Lite topics of one client."
    )
    max_lite_topic_bytes: int = Field(default=64, ge=1, description="Name of a lite topic.")
    client_metrics_endpoint: str = Field(
        default="",
        description="host:port of an OpenTelemetry collector (OTLP over gRPC) to which clients "
        "push their own metrics; empty: they measure nothing.",
    )


class SessionSection(Section):
    """Who is connected."""

    max_clients: int = Field(default=50_000, ge=1, description="Clients remembered.")
    max_clients_per_address: int = Field(
        default=25_000, ge=1, description="Clients remembered that came from one address."
    )
    max_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1,
        description="What clients said of themselves; beyond it, it is not remembered.",
    )
    max_subscriptions_per_client: int = Field(
        default=256, ge=1, description="Topics remembered of one client."
    )
    silent_ms: int = Field(
        default=15_000,
        ge=1,
        description="A client without stream or receive counts as gone after this.",
    )
    expire_ms: int = Field(
        default=120_000, ge=1, description="Any client counts as gone after this."
    )
    report_period_ms: int = Field(
        default=5_000, ge=1, description="How often storage nodes are told who lives."
    )
    report_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time for one report; a silent node delays the next ones."
    )


class MetadataSection(Section):
    """Topics and consumer groups."""

    auto_create_topic: bool = Field(
        default=False, description="Make unknown topics on first use, of type MIXED."
    )
    auto_create_group: bool = Field(
        default=True, description="Make unknown consumer groups on first receive."
    )
    auto_groups_per_s: float = Field(
        default=20.0,
        gt=0,
        description="How many of them this broker makes in one namespace; 30 s of it at once.",
    )
    max_auto_groups_per_namespace: int = Field(
        default=20_000, ge=0, description="With so many, further ones are made by operators only."
    )
    auto_topic_queue_count: int = Field(
        default=8, ge=1, description="Queues of a topic made on first use."
    )
    first_retry_ms: int = Field(default=50, ge=1, description="First pause before a repeat.")
    max_retry_ms: int = Field(default=500, ge=1, description="Longest pause before a repeat.")
    call_timeout_ms: int = Field(default=3_000, ge=1, description="Time for a nameserver call.")
    try_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time of one try; then the next nameserver is asked."
    )
    fallback_after_ms: int = Field(
        default=1_000,
        ge=0,
        description="When no nameserver answers for this long, storage nodes are asked.",
    )
    silence_timeout_ms: int = Field(
        default=3_000, ge=1, description="A watch that says nothing for this long is lost."
    )
    start_timeout_ms: int = Field(
        default=10_000, ge=1, description="Time for the first metadata; then the start fails."
    )
    heartbeat_ms: int = Field(
        default=250, ge=1, description="How often the nameservers hear of this broker."
    )
    heartbeat_timeout_ms: int = Field(default=750, ge=1, description="Time for one heartbeat.")
    deregister_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time to leave the routes when the broker stops."
    )
    drop_retry_period_ms: int = Field(
        default=30_000,
        ge=1,
        description="How often data of deleted topics and consumer groups that could not be "
        "dropped is tried again.",
    )
    rehash_period_ms: int = Field(
        default=1_000,
        ge=1,
        description="How often message groups of topics that got more queues are tried to be put "
        "where the new queue count says.",
    )
    max_creations_in_flight: int = Field(
        default=256, ge=1, description="Topics and consumer groups being made on first use."
    )


class QuotasSection(Section):
    """Limits of namespaces and topics that have none of their own; 0: no limit."""

    namespace_messages_per_s: int = Field(
        default=0, ge=0, description="Messages that producers of a namespace may send."
    )
    namespace_bytes_per_s: int = Field(
        default=0, ge=0, description="Bytes that producers of a namespace may send."
    )
    namespace_topics: int = Field(
        default=0, ge=0, description="Topics of a namespace, dead-letter topics not counted."
    )
    namespace_consumer_groups: int = Field(
        default=0, ge=0, description="Consumer groups of a namespace."
    )
    namespace_connections: int = Field(
        default=0,
        ge=0,
        description="Settings streams of a namespace's clients, one per client and broker.",
    )
    topic_messages_per_s: int = Field(
        default=0, ge=0, description="Messages that may be sent to one topic."
    )
    topic_bytes_per_s: int = Field(
        default=0, ge=0, description="Bytes that may be sent to one topic."
    )
    burst_ms: int = Field(
        default=1_000, ge=1, description="What may come at once after a pause, as time at the rate."
    )
    max_tracked: int = Field(
        default=10_000, ge=2, description="Namespaces and topics whose rate is measured."
    )


class KvSection(Section):
    """Key-value tables; only with the plugin `kv`."""

    auto_create_table: bool = Field(
        default=True, description="Make a table when it is first written to."
    )
    timeout_ms: int = Field(
        default=3_000, ge=1, description="Time for a call whose client set no deadline."
    )
    max_key_bytes: int = Field(default=4_096, ge=1, le=65_535, description="Key of an item.")
    max_value_bytes: int = Field(default=1024 * 1024, ge=1, description="Value of an item.")
    max_operations: int = Field(default=1_024, ge=1, description="Operations of one batch.")
    max_batch_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1,
        le=6 * 1024 * 1024,
        description="Keys and values of one batch.",
    )
    max_list_items: int = Field(default=1_000, ge=1, description="Items of one page of a list.")
    max_bytes_in_flight: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Writes taken and not yet answered; beyond it RESOURCE_EXHAUSTED.",
    )
    max_reads_in_flight: int = Field(
        default=10_000, ge=1, description="Items asked for and not yet answered; likewise."
    )
    max_watches: int = Field(default=1_000, ge=1, description="Watches of this broker's clients.")
    max_exports: int = Field(default=4, ge=1, description="Exports under way.")


class BrokerConfig(Config):
    """All of a broker."""

    plugins: tuple[str, ...] = Field(
        default=(), description="What is loaded beside the core, comma-separated: kv."
    )
    route: RouteSection = RouteSection()
    send: SendSection = SendSection()
    transaction: TransactionSection = TransactionSection()
    receive: ReceiveSection = ReceiveSection()
    pull: PullSection = PullSection()
    ack: AckSection = AckSection()
    peer: PeerSection = PeerSection()
    calls: CallsSection = CallsSection()
    refusals: RefusalsSection = RefusalsSection()
    storage_client: StorageClientSection = StorageClientSection()
    telemetry: TelemetrySection = TelemetrySection()
    session: SessionSection = SessionSection()
    metadata: MetadataSection = MetadataSection()
    quotas: QuotasSection = QuotasSection()
    kv: KvSection = KvSection()

    @field_validator("plugins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take a comma-separated text too: that is what fits into a variable."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    def metadata_client(self) -> MetadataClientOptions:
        """Return how the nameservers are called."""
        return MetadataClientOptions(
            call_timeout_ms=self.metadata.call_timeout_ms,
            try_timeout_ms=self.metadata.try_timeout_ms,
            first_retry_ms=self.metadata.first_retry_ms,
            max_retry_ms=self.metadata.max_retry_ms,
        )

    def metadata_follower(self) -> MetadataFollowerOptions:
        """Return how the metadata is followed."""
        return MetadataFollowerOptions(
            first_response_timeout_ms=self.metadata.try_timeout_ms,
            silence_timeout_ms=self.metadata.silence_timeout_ms,
            fallback_after_ms=self.metadata.fallback_after_ms,
            first_retry_ms=self.metadata.first_retry_ms,
            max_retry_ms=self.metadata.max_retry_ms,
        )

    def presence(self) -> PresenceOptions:
        """Return how this broker shows that it is there."""
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
        )
