"""Configuration of what a broker does with the metadata; a table of `BrokerConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from strata_metadata.options import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
)
from strata_runtime.config import Section

# Defaults are written once, where they are used.
_CLIENT, _FOLLOWER = MetadataClientOptions(), MetadataFollowerOptions()
_PRESENCE = PresenceOptions()


class MetadataSection(Section):
    """Topics and consumer groups."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "auto_groups_per_s": "auto_creations_per_s_per_namespace",
        "drop_retry_period_ms": "drop_retry_interval_ms",
        "rehash_period_ms": "rehash_interval_ms",
    }

    auto_create_topic: bool = Field(
        default=False, description="Create unknown topics on first use, with type MIXED."
    )
    auto_create_group: bool = Field(
        default=True, description="Create unknown consumer groups on first receive."
    )
    auto_creations_per_s: float = Field(
        default=40.0,
        gt=0,
        description="Topics, consumer groups and tables that this broker creates on first use; "
        "bursts of 30 s.",
    )
    auto_creations_per_s_per_namespace: float = Field(
        default=20.0, gt=0, description="The same for one namespace."
    )
    auto_creations_per_s_per_address: float = Field(
        default=10.0, gt=0, description="The same for one address of clients."
    )
    auto_creations_per_s_per_client: float = Field(
        default=5.0, gt=0, description="The same for one client."
    )
    max_auto_groups_per_namespace: int = Field(
        default=20_000,
        ge=0,
        description="Number of consumer groups from which on only operators create further ones.",
    )
    max_topics_in_use: int = Field(
        default=40_000,
        ge=2,
        description="Most topics that this broker keeps ready; each further topic is made ready "
        "anew when it is used.",
    )
    auto_topic_queue_count: int = Field(
        default=8, ge=1, description="Queues of a topic that is created on first use."
    )
    first_retry_ms: int = Field(
        default=_FOLLOWER.first_retry_ms, ge=1, description="First pause before a repeat."
    )
    max_retry_ms: int = Field(
        default=_FOLLOWER.max_retry_ms, ge=1, description="Longest pause before a repeat."
    )
    call_timeout_ms: int = Field(
        default=3_000, ge=1, description="Time limit of a nameserver call."
    )
    try_timeout_ms: int = Field(
        default=_CLIENT.try_timeout_ms,
        ge=1,
        description="Time limit of one try; then the next nameserver is asked.",
    )
    fallback_after_ms: int = Field(
        default=_FOLLOWER.fallback_after_ms,
        ge=0,
        description="Time without an answer of a nameserver after which storage nodes are asked.",
    )
    silence_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="Time after which a silent watch counts as lost.",
    )
    start_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="Time limit for the first part of the metadata, and between two parts; "
        "then the start fails.",
    )
    heartbeat_ms: int = Field(
        default=_PRESENCE.interval_ms,
        ge=1,
        description="Time between two heartbeats to the nameservers.",
    )
    heartbeat_timeout_ms: int = Field(
        default=_PRESENCE.timeout_ms, ge=1, description="Time limit of one heartbeat."
    )
    deregister_timeout_ms: int = Field(
        default=1_000, ge=1, description="Time limit to leave the routes when the broker stops."
    )
    drop_retry_interval_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time between two attempts to drop data of deleted topics and groups.",
    )
    rehash_interval_ms: int = Field(
        default=1_000,
        ge=1,
        description="Time between two attempts to move message groups to the queues of a topic's "
        "new queue count.",
    )
    max_creations_in_flight: int = Field(
        default=256,
        ge=1,
        description="Most topics, consumer groups and tables that are being created on first use.",
    )
    max_creations_in_flight_per_client: int = Field(
        default=128, ge=1, description="The same for one client."
    )
    max_creations_in_flight_per_address: int = Field(
        default=192, ge=1, description="The same for one address of clients."
    )
