"""Configuration of the processes of a cluster: one TOML file may serve all of them.

It is the standalone node's configuration and the addresses of other processes. A process reads the
sections of its own role, so one file can be given to every process.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strata_cli.processes.autoscaler_config import AutoscalerSection
from strata_cli.processes.standalone_config import NodeSection, StandaloneConfig
from strata_runtime.addresses import host_and_port, is_host
from strata_runtime.config import Section
from strata_storage.base.config import StorageConfig

MAX_PROCESSES = 256
"""Most workers or shards of one machine."""

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

    machine: str = Field(
        default="",
        description="Machine of this process; two replicas of a raft group are never on one "
        "machine. Empty: the process is a machine of its own, and those that `storage.shards` or "
        "`broker.workers` starts are one machine, named after their data folder.",
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
            host_and_port(endpoint)
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

    @field_validator("advertised_host")
    @classmethod
    def _check_host(cls, value: str) -> str:
        if value and not is_host(value.strip("[]")):
            raise ValueError(f"{value[:80]!r} is no host: other processes could not look it up")
        return value

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
    max_restart_pause_ms: int = Field(
        default=30_000,
        ge=1,
        description="Longest pause before a worker or shard that died is started again; the first "
        "pause is 250 ms, and each further one twice as long.",
    )


ProcessCount = Annotated[int, Field(ge=1, le=MAX_PROCESSES)] | Literal["auto"]
"""How many processes one command starts; auto: one per core."""


class ClusterBrokerSection(Section):
    """The processes of `strata broker`."""

    workers: ProcessCount = Field(
        default=1,
        description="Brokers that `strata broker` starts on one port for clients, each a process "
        "with the limits of `[edge]` for itself; auto: one per core.",
    )
    peer_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port of the first worker for calls of other brokers, each further worker has "
        "the next one; 0: any free ports. One broker alone takes these calls on `node.grpc_port`. "
        "Not with `angelia.tls` = required.",
    )
    peer_tls_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port for calls of other brokers under certificates of the cluster (Angelia "
        "tcp), of one broker alone or of the first worker; each further worker has the next one; "
        "0: any free ports.",
    )


class ClusterStorageSection(StorageConfig):
    """The processes of `strata storage`."""

    shards: ProcessCount = Field(
        default=1,
        description="Storage nodes that `strata storage` starts in one data folder, each a process "
        "with a log and limits of its own; they listen on `node.storage_port` and the next ports. "
        "auto: one per core.",
    )


class ClusterConfig(StandaloneConfig):
    """All sections of all processes."""

    node: ClusterNodeSection = ClusterNodeSection()
    cluster: ClusterSection = ClusterSection()
    broker: ClusterBrokerSection = ClusterBrokerSection()
    storage: ClusterStorageSection = ClusterStorageSection()
    autoscaler: AutoscalerSection = AutoscalerSection()
