"""Configuration of a standalone node: one TOML file for all its members.

The members use their own sections, so a key means the same in every kind of deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, Field, field_validator

from strata_angelia.config import AngeliaSection
from strata_broker.base.config import BrokerConfig
from strata_broker.base.window_options import WindowOptions
from strata_cli.processes.console_config import ConsoleSection
from strata_edge.guard_limits import GuardLimits
from strata_edge.options import EdgeOptions
from strata_nameserver.base.config import NameserverConfig
from strata_runtime.config import Section
from strata_runtime.observability import ObservabilityConfig
from strata_runtime.tls_policy import TlsVersion
from strata_storage.base.config import StorageConfig
from strata_storage.tiering.config import TierConfig

ConfigT = TypeVar("ConfigT", bound="StandaloneConfig")

# Defaults are written once, where they are used.
_EDGE, _GUARD = EdgeOptions(), GuardLimits()


class NodeSection(Section):
    """The process itself."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "audit_file_bytes": "max_audit_file_bytes",
        "audit_file_count": "max_audit_files",
    }

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    grpc_port: int = Field(
        default=8081, ge=0, le=65_535, description="Port for clients; 0: any free port."
    )
    admin_host: str = Field(
        default="127.0.0.1",
        description="Address of the port for operators (strata.admin.v1 and RocketMQ's Admin "
        "service); TLS only where it is no loopback address. Where `host` is a loopback address or "
        "access control is off, the port for clients serves operators too.",
    )
    admin_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port for operators, of one broker alone or of the first worker; each further "
        "worker has the next one; 0: any free ports.",
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
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="Form of log lines: json is one JSON object per line, console is for people; "
        "auto: console on a terminal, else json.",
    )
    audit_log: bool = Field(
        default=True,
        description="Write a line to the broker's log for each change of the cluster that an "
        "operator asks for, each refusal and each sign-in, whatever the log level is.",
    )
    audit_file: str = Field(
        default="",
        description="File for the audit trail, one JSON object per line; empty: none.",
    )
    max_audit_file_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=4_096,
        description="Size at which that file is renamed to FILE.1, FILE.1 to FILE.2 and so on.",
    )
    max_audit_files: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Most files of the audit trail that are kept; the oldest is deleted.",
    )


class EdgeSection(Section):
    """The port for clients."""

    adapter: Literal["auto", "grpcio", "native"] = Field(
        default="auto",
        description="The implementation of HTTP/2 and TLS: grpcio with its front process, or the "
        "extension in native code (`make edge`); auto: the extension if it is installed.",
    )
    tls: bool = Field(default=True, description="Serve TLS on the same port as plaintext.")
    tls_only: bool = Field(
        default=_EDGE.tls_only, description="Refuse clients that speak plaintext."
    )
    certificate_file: str = Field(
        default="",
        description="Certificate chain (PEM), read again when it changes; empty: a self-signed "
        "certificate is created.",
    )
    key_file: str = Field(
        default="", description="Key of the certificate (PEM, without a password)."
    )
    min_tls_version: TlsVersion = Field(default="1.2", description="Lowest version of TLS.")
    tls_ciphers: tuple[str, ...] = Field(
        default=(),
        description="Cipher suites of TLS 1.2 by their IANA names, comma-separated; empty: those "
        "that are thought to be safe.",
    )
    max_connections: int = Field(
        default=_EDGE.max_connections, ge=1, description="Most client connections."
    )
    max_connections_per_address: int = Field(
        default=_EDGE.max_connections_per_address,
        ge=1,
        description="Most connections of one address; clients behind a load balancer share one.",
    )
    max_streams_per_connection: int = Field(
        default=_EDGE.max_streams_per_connection,
        ge=1,
        description="Most concurrent calls of one connection; further calls wait at the client.",
    )
    max_calls_per_address: int = Field(
        default=_EDGE.max_calls_per_address,
        ge=1,
        description="Most concurrent calls of one address, without sends and acks; each "
        "holds 40 KB.",
    )
    handshake_timeout_ms: int = Field(
        default=_EDGE.handshake_timeout_ms,
        ge=1,
        description="Time limit for a connection's first byte and its TLS handshake.",
    )
    keepalive_idle_ms: int = Field(
        default=_EDGE.keepalive.idle_ms,
        ge=1_000,
        le=32_767_000,
        description="Silence of a connection after which TCP asks for a sign of life; whole "
        "seconds count.",
    )
    keepalive_interval_ms: int = Field(
        default=_EDGE.keepalive.interval_ms,
        ge=1_000,
        le=32_767_000,
        description="Time between two such questions; whole seconds count.",
    )
    keepalive_questions: int = Field(
        default=_EDGE.keepalive.questions,
        ge=1,
        le=127,
        description="Questions without an answer after which the connection is closed.",
    )
    max_receive_bytes: int = Field(
        default=_EDGE.max_receive_bytes, ge=1024, description="Largest request."
    )
    max_unread_bytes: int = Field(
        default=_EDGE.max_unread_bytes,
        ge=1,
        description="Most bytes of answers that clients have not read; then receives and other "
        "streams get RESOURCE_EXHAUSTED.",
    )
    max_unread_bytes_per_address: int = Field(
        default=_EDGE.max_unread_bytes_per_address,
        ge=1,
        description="The same for the clients of one address.",
    )
    max_unread_bytes_per_connection: int = Field(
        default=_EDGE.max_unread_bytes_per_connection,
        ge=1,
        description="The same for one connection.",
    )
    unread_reserve_bytes: int = Field(
        default=_EDGE.unread_reserve_bytes,
        ge=0,
        description="Bytes beyond `max_unread_bytes` from which each connection that has read "
        "everything receives one answer at a time.",
    )
    max_read_pause_ms: int = Field(
        default=_EDGE.max_read_pause_ms,
        ge=1,
        description="Time in which a client with unread answers has to read on while others are "
        "refused; a slower one is disconnected. With grpcio it counts only with edge.tls.",
    )
    min_read_bytes_per_s: int = Field(
        default=_EDGE.min_read_bytes_per_s,
        ge=1,
        description="Rate that is asked of it in this time, unless it reads everything.",
    )
    large_request_bytes: int = Field(
        default=_GUARD.large_request_bytes,
        ge=1024,
        description="Size above which a request waits at its client for room.",
    )
    max_large_request_bytes: int = Field(
        default=_EDGE.max_large_request_bytes,
        ge=1,
        description="Most bytes of large requests that arrive or wait for an answer; a "
        "single one is always allowed. It counts only with edge.tls.",
    )
    max_large_request_bytes_per_address: int = Field(
        default=_EDGE.max_large_request_bytes_per_address,
        ge=1,
        description="The same for the clients of one address; further large requests wait.",
    )
    max_large_request_bytes_per_connection: int = Field(
        default=_EDGE.max_large_request_bytes_per_connection,
        ge=1,
        description="The same for one connection.",
    )
    slow_upload_ms: int = Field(
        default=_EDGE.slow_upload_ms,
        ge=1,
        description="Time after which a request that still arrives counts as a slow upload.",
    )
    max_upload_ms: int = Field(
        default=_EDGE.max_upload_ms,
        ge=1,
        description="Time after which a request that still arrives is cancelled.",
    )
    max_slow_uploads: int = Field(
        default=_EDGE.max_slow_uploads,
        ge=1,
        description="Most concurrent slow uploads; further ones get RESOURCE_EXHAUSTED.",
    )
    max_slow_uploads_per_address: int = Field(
        default=_EDGE.max_slow_uploads_per_address,
        ge=1,
        description="The same for the clients of one address.",
    )
    max_request_pause_ms: int = Field(
        default=_GUARD.max_request_pause_ms,
        ge=1,
        description="Time in which the large requests of a connection have to go on while others "
        "wait for their room; a slower connection is ended. This key and the next ones, up to "
        "`relay_buffer_bytes`, count only with edge.tls.",
    )
    min_upload_bytes_per_s: int = Field(
        default=_GUARD.min_upload_bytes_per_s,
        ge=1,
        description="Rate that is asked of them in this time, unless they come to their end.",
    )
    max_unfinished_requests_per_connection: int = Field(
        default=_GUARD.max_unfinished_requests,
        ge=1,
        description="Most unfinished requests of several frames on one connection; more end "
        "the connection.",
    )
    max_resets_per_s: int = Field(
        default=_GUARD.max_resets_per_s,
        ge=1,
        description="Most streams that a connection may reset per second. A connection that "
        "exceeds this or one of the next two keys is not read for a while.",
    )
    max_control_frames_per_s: int = Field(
        default=_GUARD.max_control_frames_per_s,
        ge=1,
        description="Most pings, settings, empty frames and further small messages of "
        "streams, of one connection per second.",
    )
    max_header_bytes_per_s: int = Field(
        default=_GUARD.max_header_bytes_per_s,
        ge=1,
        description="Most bytes of headers of one connection per second.",
    )
    control_credit_ms: int = Field(
        default=_GUARD.control_credit_ms,
        ge=0,
        description="Burst of these three rates, as time at the rate.",
    )
    max_control_pause_ms: int = Field(
        default=_GUARD.max_control_pause_ms,
        ge=1,
        description="Longest time without a break in which a connection is not read.",
    )
    control_grace_ms: int = Field(
        default=_GUARD.control_grace_ms,
        ge=0,
        description="Use of these rates, as time at the rate, below which a connection does "
        "not wait for the others of its address.",
    )
    control_connections_per_address: int = Field(
        default=_GUARD.control_connections_per_address,
        ge=1,
        description="Factor on these rates for all connections of one address together.",
    )
    relay_buffer_bytes: int = Field(
        default=_EDGE.relay_buffer_bytes,
        ge=4_096,
        description="Most bytes per direction that are held for a client that reads slowly.",
    )
    max_hot_calls: int = Field(
        default=_EDGE.max_hot_calls,
        ge=1,
        description="Most sends, receives and acks that wait for an answer; further calls "
        "get RESOURCE_EXHAUSTED.",
    )
    max_rare_calls: int = Field(
        default=_EDGE.max_rare_calls,
        ge=1,
        description="The same for all other calls, telemetry among them.",
    )
    max_metadata_bytes: int = Field(
        default=_EDGE.max_metadata_bytes,
        ge=1_024,
        description="Largest size of all headers of a call.",
    )
    min_client_ping_interval_ms: int = Field(
        default=round(_EDGE.min_client_ping_interval_s * 1_000),
        ge=0,
        description="Shortest time between two pings of a client; a client that pings more "
        "often is disconnected.",
    )

    @field_validator("tls_ciphers", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value


class StandaloneConfig(BrokerConfig):
    """All of a standalone node: the broker's sections and those of the other members."""

    node: NodeSection = NodeSection()
    edge: EdgeSection = EdgeSection()
    angelia: AngeliaSection = AngeliaSection()
    nameserver: NameserverConfig = NameserverConfig()
    storage: StorageConfig = StorageConfig()
    tier: TierConfig = TierConfig()
    console: ConsoleSection = ConsoleSection()
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


def with_remoting_defaults(config: ConfigT) -> ConfigT:
    """Return a configuration whose remoting port has what it takes from other sections.

    These are the address of the other ports, and the policy of TLS.
    """
    remoting, edge = config.remoting, config.edge
    if remoting.port is None:
        return config
    ciphers = edge.tls_ciphers if remoting.tls_ciphers is None else remoting.tls_ciphers
    taken = {
        "host": remoting.host or config.node.host,
        "min_tls_version": remoting.min_tls_version or edge.min_tls_version,
        "tls_ciphers": ciphers,
    }
    return config.with_flags(remoting=taken)


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
    return WindowOptions(
        publish=shown.windows,
        length_ms=shown.window_ms,
        max_unpublished=shown.max_unpublished_windows,
    )
