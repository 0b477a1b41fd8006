"""Configuration of calls to storage nodes; a table of `BrokerConfig`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strata_runtime.config import Section


class StorageClientSection(Section):
    """Calls to storage nodes."""

    storage_transport: Literal["tcp", "http2"] = Field(
        default="tcp", description="Transport of calls to storage nodes: Angelia's own, or gRPC."
    )
    storage_codec: Literal["protobuf", "json", "avro"] = Field(
        default="protobuf", description="Encoding of calls to storage nodes."
    )
    connect_timeout_ms: int = Field(
        default=500, ge=1, description="Time limit to connect; then the next replica is asked."
    )
    first_retry_ms: int = Field(default=5, ge=1, description="First pause before a repeat.")
    max_retry_ms: int = Field(default=100, ge=1, description="Longest pause before a repeat.")
    max_parked_retry_ms: int = Field(
        default=1_000,
        ge=1,
        description="The same for receives that wait; a new leader's report ends the pause early.",
    )
    call_timeout_ms: int = Field(
        default=3_000, ge=1, description="Time limit of a call whose client set no deadline."
    )
    try_timeout_ms: int = Field(
        default=1_000,
        ge=1,
        description="Time limit of one try when other replicas could lead; then the next is asked.",
    )
    former_leader_grace_ms: int = Field(
        default=100,
        ge=0,
        description="Time for which a call to a former leader may still be answered.",
    )
    distrust_ms: int = Field(
        default=500,
        ge=0,
        description="Time after a node's silence for which refusals that name it as leader are "
        "ignored.",
    )
    max_watches: int = Field(
        default=1_000, ge=1, description="Most storage nodes that are watched for what they lead."
    )
    max_quiet_places: int = Field(
        default=200_000,
        ge=1,
        description="Most pairs of raft group and consumer group that are known to have no "
        "messages; receives that wait ask further pairs once a second.",
    )
    max_quiet_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time after which receives that wait ask a raft group although its "
        "storage node has reported no messages.",
    )
    max_watch_retry_ms: int = Field(
        default=500, ge=1, description="Longest pause before a lost watch is reopened."
    )
    spread_from_groups: int = Field(
        default=8,
        ge=1,
        description="Number of consumer groups from which on all replicas of a raft group "
        "serve a topic's reads.",
    )
    unreadable_leader_ms: int = Field(
        default=60_000,
        ge=0,
        description="Time for which a leader whose disk could not read a message is asked "
        "only for places of messages; other replicas read the messages.",
    )
    spread_above_bytes_per_s: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Rate of reads above which a topic is read from all replicas of a raft group.",
    )
    max_spread_topics: int = Field(
        default=10_000,
        ge=1,
        description="Most pairs of topic and raft group whose reads are counted.",
    )
    max_acks_per_call: int = Field(default=4_096, ge=1, description="Most acks in one call.")
    max_ends_per_call: int = Field(
        default=256, ge=1, description="Most transactions that one call ends."
    )
