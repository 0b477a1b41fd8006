"""Configuration of a standalone node: one TOML file for all its members.

The members use their own sections, so a key means the same in every kind of deployment.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from strata_angelia.config import AngeliaSection
from strata_broker.base.config import BrokerConfig
from strata_broker.operators.windows import WindowOptions
from strata_nameserver.base.config import NameserverConfig
from strata_runtime.config import Section
from strata_runtime.observability import ObservabilityConfig
from strata_storage.base.config import StorageConfig
from strata_storage.tiering.config import TierConfig


class NodeSection(Section):
    """The process itself."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    grpc_port: int = Field(
        default=8081, ge=0, le=65_535, description="Port for clients; 0: any free port."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port for Prometheus and health; absent: no such port.",
    )
    drain_ms: int = Field(
        default=10_000, ge=0, description="Time limit for calls under way when the node stops."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="Lowest level that is logged."
    )
    audit_log: bool = Field(
        default=True,
        description="Write a line to the log of a broker for each change of the cluster that an "
        "operator asks it for, whatever the level.",
    )


class EdgeSection(Section):
    """The port for clients."""

    adapter: Literal["auto", "grpcio", "native"] = Field(
        default="auto",
        description="The implementation of HTTP/2 and TLS: grpcio with its front process, or the "
        "extension in native code (`make edge`); auto: the extension if it is installed.",
    )
    tls: bool = Field(default=True, description="Serve TLS on the same port as plaintext.")
    tls_only: bool = Field(default=False, description="Refuse clients that speak plaintext.")
    certificate_file: str = Field(
        default="",
        description="Certificate chain (PEM), read again when it changes; empty: a self-signed "
        "certificate is created.",
    )
    key_file: str = Field(
        default="", description="Key of the certificate (PEM, without a password)."
    )
    max_connections: int = Field(default=20_000, ge=1, description="Client connections.")
    max_connections_per_address: int = Field(
        default=15_000,
        ge=1,
        description="Most connections of one address; clients behind a load balancer share one.",
    )
    max_streams_per_connection: int = Field(
        default=1_024,
        ge=1,
        description="Most concurrent calls of one connection; further calls wait at the client.",
    )
    max_calls_per_address: int = Field(
        default=5_000,
        ge=1,
        description="Most concurrent calls of one address, without sends and acks; each "
        "holds 40 KB.",
    )
    handshake_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="Time limit for a connection's first byte and its TLS handshake.",
    )
    max_receive_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Largest request."
    )
    max_unread_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1,
        description="Most bytes of answers that clients have not read; then receives and other "
        "streams get RESOURCE_EXHAUSTED.",
    )
    max_unread_bytes_per_address: int = Field(
        default=96 * 1024 * 1024, ge=1, description="The same for the clients of one address."
    )
    max_unread_bytes_per_connection: int = Field(
        default=32 * 1024 * 1024, ge=1, description="The same for one connection."
    )
    large_request_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        description="Size above which a request waits at its client for room.",
    )
    max_large_request_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="Most bytes of large requests that arrive or wait for an answer; a single "
        "one is always allowed. With edge.tls.",
    )
    slow_upload_ms: int = Field(
        default=1_000,
        ge=1,
        description="Time after which a request that still arrives counts as a slow upload.",
    )
    max_upload_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time after which a request that still arrives is cancelled.",
    )
    max_slow_uploads: int = Field(
        default=64,
        ge=1,
        description="Most concurrent slow uploads; further ones get RESOURCE_EXHAUSTED.",
    )
    max_slow_uploads_per_address: int = Field(
        default=16, ge=1, description="The same for the clients of one address."
    )
    max_request_pause_ms: int = Field(
        default=5_000,
        ge=1,
        description="A large request that does not go on for so long, while others wait for its "
        "room, ends its connection. With edge.tls, as are the keys below but the last four.",
    )
    max_unfinished_requests_per_connection: int = Field(
        default=16_384,
        ge=1,
        description="Requests of several frames under way on one connection; more end it.",
    )
    max_resets_per_s: int = Field(
        default=100,
        ge=1,
        description="Streams that a connection may reset per second; a connection that asks more "
        "than this and the next two keys allow is not read for a while.",
    )
    max_control_frames_per_s: int = Field(
        default=2_000,
        ge=1,
        description="Pings, settings, empty frames and further small messages of a stream, of one "
        "connection per second.",
    )
    max_header_bytes_per_s: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Bytes of headers of one connection per second.",
    )
    control_credit_ms: int = Field(
        default=10_000,
        ge=0,
        description="How much of these three rates a connection may ask at once.",
    )
    max_control_pause_ms: int = Field(
        default=10_000, ge=1, description="The longest time that a connection is not read at once."
    )
    control_grace_ms: int = Field(
        default=500,
        ge=0,
        description="A connection that has asked less than so much of these rates does not wait "
        "for the others of its address.",
    )
    control_connections_per_address: int = Field(
        default=20,
        ge=1,
        description="The connections of one address together may ask so many times these rates.",
    )
    relay_buffer_bytes: int = Field(
        default=128 * 1024,
        ge=4_096,
        description="Bytes per direction that are held for a client that reads slowly.",
    )
    max_hot_calls: int = Field(
        default=100_000,
        ge=1,
        description="Sends, receives and acks that wait for an answer; beyond it "
        "RESOURCE_EXHAUSTED.",
    )
    max_rare_calls: int = Field(
        default=50_000, ge=1, description="The same for all other calls, telemetry among them."
    )
    max_metadata_bytes: int = Field(
        default=16 * 1024, ge=1_024, description="Size of all headers of a call."
    )
    min_client_ping_interval_ms: int = Field(
        default=5_000,
        ge=0,
        description="A client that pings more often than this is cut off.",
    )


class StandaloneConfig(BrokerConfig):
    """All of a standalone node: the broker's sections and those of the other members."""

    node: NodeSection = NodeSection()
    edge: EdgeSection = EdgeSection()
    angelia: AngeliaSection = AngeliaSection()
    nameserver: NameserverConfig = NameserverConfig()
    storage: StorageConfig = StorageConfig()
    tier: TierConfig = TierConfig()
    observability: ObservabilityConfig = ObservabilityConfig()

    def with_flags(self, **sections: Any) -> Self:
        """Return a copy with the options of the command line; None leaves a key as it is.

        Args:
            sections: keys of each section; a key may also be outside of sections.

        Raises:
            pydantic.ValidationError: a value is not allowed.
        """
        values = self.model_dump()
        for name, given in sections.items():
            if isinstance(given, dict):
                values[name] |= {key: value for key, value in given.items() if value is not None}
            elif given is not None:
                values[name] = given
        return type(self).model_validate(values)


def standalone_part(config: StandaloneConfig) -> StandaloneConfig:
    """Return what a standalone node takes of a configuration that serves every process."""
    values: dict[str, Any] = {}
    for name, field in StandaloneConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel) and isinstance(field.default, BaseModel):
            keys = type(field.default).model_fields
            values[name] = {key: getattr(value, key) for key in keys}
        else:
            values[name] = value
    return StandaloneConfig.model_validate(values)


def window_options(config: StandaloneConfig) -> WindowOptions | None:
    """Return a broker's options of metric windows; None: they are not used."""
    shown, node = config.observability, config.node
    if not shown.windows and node.metrics_port is None and not shown.otlp_endpoint:
        return None
    return WindowOptions(publish=shown.windows, length_ms=shown.window_ms)
