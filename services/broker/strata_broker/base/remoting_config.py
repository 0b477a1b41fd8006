"""The section `[remoting]`: clients of RocketMQ's older protocol and their port."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from strata_remoting import FrameLimits
from strata_runtime.config import Section
from strata_runtime.tls_policy import TlsPolicy, TlsVersion

# Defaults are written once, where they are used.
_FRAME = FrameLimits()


class RemotingSection(Section):
    """The port for clients of RocketMQ 4 and 5 that speak the remoting protocol."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port for the remoting protocol, of one broker alone or of the first worker; "
        "each further worker has the next one; 0: any free port; absent: no such port. It serves "
        "the calls of a nameserver too.",
    )
    client_port: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether the port for gRPC clients takes the remoting protocol too. auto: it "
        "does, unless remoting.port is absent and the port is one of several brokers: workers "
        "share it, or routes name a virtual address (route.advertised_endpoint). on: it does for a "
        "virtual address too, behind which there is one broker alone.",
    )
    host: str = Field(
        default="", description="Address to listen on; empty: that of the port for gRPC clients."
    )
    cluster_name: str = Field(
        default="DefaultCluster", min_length=1, description="Name of the cluster in routes."
    )
    certificate_file: str = Field(
        default="",
        description="Certificate chain (PEM) for clients with TLS, read again when it changes; "
        "the port takes both, TLS and plaintext; empty: there is no TLS.",
    )
    key_file: str = Field(
        default="", description="Key of the certificate (PEM, without a password)."
    )
    tls_only: bool = Field(default=False, description="Refuse clients that speak plaintext.")
    min_tls_version: TlsVersion | None = Field(
        default=None,
        description="Lowest version of TLS on this port; absent: that of edge.min_tls_version.",
    )
    tls_ciphers: tuple[str, ...] | None = Field(
        default=None,
        description="Suites of TLS 1.2 on this port, by their names of the IANA registry; absent: "
        "those of edge.tls_ciphers.",
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Most connections; a further connection is closed."
    )
    max_connections_per_address: int = Field(
        default=5_000, ge=1, description="The same for one client address."
    )
    max_frame_bytes: int = Field(
        default=_FRAME.max_frame_bytes,
        ge=1_024,
        description="Largest frame; a larger one ends its connection.",
    )
    max_header_bytes: int = Field(
        default=_FRAME.max_header_bytes,
        ge=256,
        description="Largest header of a frame, likewise.",
    )
    max_header_fields: int = Field(
        default=_FRAME.max_fields, ge=1, description="Most fields of a header, likewise."
    )
    max_json_bytes: int = Field(
        default=1024 * 1024,
        ge=1_024,
        description="Largest body of a heartbeat or of a request for locks, which is read at once; "
        "a larger one is refused.",
    )
    max_unfinished_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1_024,
        description="Most bytes of frames that still arrive, of all connections; more end the "
        "connection.",
    )
    max_unfinished_bytes_per_address: int = Field(
        default=192 * 1024 * 1024,
        ge=1_024,
        description="The same for the clients of one address.",
    )
    idle_timeout_ms: int = Field(
        default=120_000,
        ge=1,
        description="Time without a request after which a connection is closed.",
    )
    max_upload_ms: int = Field(
        default=30_000, ge=1, description="Time limit for one frame to arrive, from its first byte."
    )
    max_requests_per_connection: int = Field(
        default=256,
        ge=1,
        description="Most requests of a connection that wait for an answer; then it is not read.",
    )
    max_requests: int = Field(
        default=20_000,
        ge=1,
        description="Most requests of all connections; further requests get SYSTEM_BUSY.",
    )
    max_request_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=65_536,
        description="Most bytes of requests of all connections that are carried out; further "
        "requests get SYSTEM_BUSY.",
    )
    max_request_bytes_per_client: int = Field(
        default=64 * 1024 * 1024,
        ge=65_536,
        description="The same for one client, and for one connection; it may have one larger "
        "request at a time.",
    )
    max_request_bytes_per_address: int = Field(
        default=192 * 1024 * 1024,
        ge=65_536,
        description="The same for the clients of one address.",
    )
    max_unread_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time limit for a client to read an answer; a slower one is disconnected.",
    )
    max_unread_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=65_536,
        description="Most bytes of answers that clients have not read; then requests with a large "
        "answer get SYSTEM_BUSY, and messages that they popped are given back.",
    )
    max_unread_bytes_per_connection: int = Field(
        default=32 * 1024 * 1024,
        ge=65_536,
        description="The same for one connection; it may have one larger answer at a time.",
    )
    max_unread_bytes_per_address: int = Field(
        default=96 * 1024 * 1024,
        ge=65_536,
        description="The same for the clients of one address.",
    )
    max_inflated_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1_024,
        description="Most bytes of message bodies that are being inflated at the same time; "
        "further ones wait, and their clients take turns.",
    )
    max_groups_per_client: int = Field(
        default=64,
        ge=1,
        description="Most producer and consumer groups of one client; further ones are refused.",
    )
    max_subscription_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=65_536,
        description="Most bytes of subscriptions of consumers that are connected; a heartbeat with "
        "further ones gets SYSTEM_BUSY.",
    )
    max_subscription_bytes_per_client: int = Field(
        default=16 * 1024 * 1024,
        ge=65_536,
        description="The same for one client, and for one connection.",
    )
    max_subscription_bytes_per_address: int = Field(
        default=192 * 1024 * 1024,
        ge=65_536,
        description="The same for the clients of one address.",
    )
    max_transaction_groups: int = Field(
        default=10_000,
        ge=1,
        description="Most producer groups whose topics with transactional messages are remembered; "
        "the topics of a group that was forgotten are learned again from its messages.",
    )
    member_timeout_ms: int = Field(
        default=120_000,
        ge=1,
        description="Time without a heartbeat after which a member of a consumer group counts as "
        "gone.",
    )
    member_notice_pause_ms: int = Field(
        default=100,
        ge=1,
        description="Shortest time between two notices that the members of a consumer group have "
        "changed. A change after a longer time is told at once; further changes wait and are told "
        "together.",
    )
    lock_ms: int = Field(
        default=60_000,
        ge=1,
        description="Time for which an orderly consumer has a queue without asking again.",
    )
    max_locks: int = Field(
        default=100_000, ge=1, description="Most locks of queues; further ones are not given."
    )
    max_locks_per_client: int = Field(
        default=10_000,
        ge=1,
        description="Most locks of queues of one client, and of one connection; further ones are "
        "not given.",
    )
    max_locks_per_address: int = Field(
        default=75_000, ge=1, description="The same for one address of clients."
    )
    max_notifications: int = Field(
        default=1_000,
        ge=1,
        description="Most requests that wait to be told of a message that can be popped; a further "
        "one is answered at once and says that there is no room.",
    )
    max_notifications_per_client: int = Field(
        default=100, ge=1, description="The same for one client, and for one connection."
    )
    max_notifications_per_address: int = Field(
        default=750, ge=1, description="The same for one address of clients."
    )
    notification_check_ms: int = Field(
        default=500,
        ge=10,
        description="Time between two looks of such requests at a raft group that does not tell of "
        "messages: its node has an earlier version, or storage.max_interests is reached.",
    )
    reply_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="Time limit for a client to take a consumer's reply; then the consumer is told "
        "that the reply failed.",
    )
    max_replies: int = Field(
        default=10_000,
        ge=1,
        description="Most replies of consumers under way, those of other brokers too; further "
        "replies get SYSTEM_BUSY.",
    )
    max_replies_per_client: int = Field(
        default=2_500,
        ge=1,
        description="The same for the replies of one consumer and of one connection, and for those "
        "to one client.",
    )
    max_replies_per_address: int = Field(
        default=7_500, ge=1, description="The same for the consumers of one address."
    )
    max_reply_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1_024,
        description="Most bytes of replies of consumers under way, those of other brokers too; "
        "further replies get SYSTEM_BUSY.",
    )
    max_reply_places: int = Field(
        default=10_000,
        ge=1,
        description="Most clients whose broker is remembered from their last reply; the other "
        "brokers are asked for the broker of any other client.",
    )

    @field_validator("tls_ciphers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("give certificate_file and key_file, or none of them")
        if self.tls_only and not self.certificate_file:
            raise ValueError("tls_only needs certificate_file and key_file")
        return self

    def tls_policy(self) -> TlsPolicy:
        """Return the versions and ciphers of the port.

        Raises:
            ConfigError: a suite is unknown.
        """
        return TlsPolicy.checked(self.min_tls_version or "1.2", self.tls_ciphers or ())

    def frame_limits(self) -> FrameLimits:
        """Return the limits of one frame."""
        return FrameLimits(
            max_frame_bytes=self.max_frame_bytes,
            max_header_bytes=self.max_header_bytes,
            max_fields=self.max_header_fields,
        )
