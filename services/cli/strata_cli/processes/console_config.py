"""The section `[console]`: the port for browsers and the limits of what they may cost."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from strata_runtime.config import Section


class ConsoleSection(Section):
    """The web console."""

    enabled: bool = Field(
        default=True, description="Serve the console; a standalone node starts it when it is used."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port for browsers; 0: any free port, which the ready line names.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port for the metrics of the console's process; absent: no such port.",
    )
    certificate_file: str = Field(
        default="", description="Certificate chain (PEM) for TLS; empty: the console has no TLS."
    )
    key_file: str = Field(
        default="", description="Key of the certificate (PEM, without a password)."
    )
    behind_tls: bool = Field(
        default=False,
        description="A proxy in front of the console has TLS: the console may serve other "
        "addresses than loopback addresses without a certificate.",
    )
    insecure: bool = Field(
        default=False,
        description="Serve other addresses than loopback addresses without TLS, and without a "
        "sign-in where access control is off: anybody may do anything.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names that browsers may use for the console, comma-separated; empty: any "
        "name, or names of the loopback interface only where the console listens on it.",
    )
    session_ms: int = Field(
        default=12 * 3_600_000, ge=1_000, description="Time after which a user signs in again."
    )
    session_idle_ms: int = Field(
        default=30 * 60_000,
        ge=1_000,
        description="Time without a request of its user after which a session ends.",
    )
    max_sessions: int = Field(
        default=128,
        ge=1,
        description="Most sessions; a further sign-in ends the session that was idle for longest.",
    )
    max_sessions_per_user: int = Field(
        default=16, ge=1, description="The same for the sessions of one user."
    )
    sign_in_failures: int = Field(
        default=10,
        ge=1,
        description="Most failed sign-ins of one address within `sign_in_window_ms`; further "
        "sign-ins are refused with status 429.",
    )
    sign_in_window_ms: int = Field(
        default=60_000, ge=1_000, description="Time after which a failed sign-in is forgotten."
    )
    max_sign_in_addresses: int = Field(
        default=4_096,
        ge=1,
        description="Most addresses whose failed sign-ins are counted; the oldest is forgotten.",
    )
    max_request_bytes: int = Field(
        default=6 * 1024 * 1024,
        ge=1_024,
        description="Largest request of a browser; larger ones are refused with status 413.",
    )
    max_connections: int = Field(
        default=256,
        ge=1,
        description="Most connections of browsers; further ones are refused with status 503.",
    )
    max_calls: int = Field(
        default=16, ge=1, description="Most concurrent calls to the cluster; further ones wait."
    )
    call_timeout_ms: int = Field(
        default=10_000, ge=100, description="Time limit of one call to the cluster."
    )
    max_streams: int = Field(
        default=64,
        ge=1,
        description="Most live pages; further ones are refused with status 429.",
    )
    refresh_ms: int = Field(
        default=2_000, ge=100, description="Time between two looks at what a live page shows."
    )
    tail_ms: int = Field(
        default=500, ge=50, description="Time between two looks for new messages of a live tail."
    )
    max_tail_messages: int = Field(
        default=200, ge=1, description="Most messages of one look of a live tail."
    )
    max_page: int = Field(default=200, ge=1, description="Most rows of one page of a list.")
    catalogue_ms: int = Field(
        default=5_000,
        ge=0,
        description="Age at which the list of all topics or consumer groups is read again.",
    )
    max_catalogues: int = Field(
        default=8,
        ge=1,
        description="Most users whose lists are kept; the list that was unused for longest goes.",
    )
    max_catalogue_rows: int = Field(
        default=50_000,
        ge=1,
        description="Most topics or consumer groups of one list; the rest is left out, and the "
        "page says so.",
    )

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
