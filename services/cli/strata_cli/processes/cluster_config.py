"""Configuration of the processes of a cluster: one TOML file may serve all of them.

It is the standalone node's configuration and the addresses of other processes. A process reads the
sections of its own role, so one file can be given to every process.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from strata_cli.processes.standalone_config import NodeSection, StandaloneConfig
from strata_runtime.config import Section

WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104


class ClusterSection(Section):
    """Addresses of the other processes of the cluster."""

    nameservers: tuple[str, ...] = Field(
        default=(), description="host:port of every nameserver (Angelia tcp)."
    )
    storage_seeds: tuple[str, ...] = Field(
        default=(),
        description="host:port of some storage nodes; a broker gets the metadata from them when "
        "no nameserver answers.",
    )
    rack: str = Field(
        default="",
        description="Failure domain of this process; replicas are spread over failure domains.",
    )

    @field_validator("nameservers", "storage_seeds", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as flags and environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("nameservers", "storage_seeds")
    @classmethod
    def _check(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in value:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"{endpoint!r} is not host:port")
        if len(set(value)) != len(value):
            raise ValueError("an endpoint is listed twice")
        return value


class ClusterNodeSection(NodeSection):
    """The process itself; each role listens on its own ports."""

    advertised_host: str = Field(
        default="",
        description="Host under which other processes reach this one; empty: `host`, or the "
        "machine's name if it listens on every address.",
    )
    nameserver_port: int = Field(
        default=9877, ge=0, le=65_535, description="Port of a nameserver (Angelia tcp)."
    )
    storage_port: int = Field(
        default=10_920, ge=0, le=65_535, description="Port of a storage node (Angelia tcp)."
    )
    storage_http2_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of a storage node for gRPC (Angelia http2); absent: no such port.",
    )


class ClusterConfig(StandaloneConfig):
    """All sections of all processes."""

    node: ClusterNodeSection = ClusterNodeSection()
    cluster: ClusterSection = ClusterSection()
