"""Configuration of receives, pulls and acks; tables of `BrokerConfig`."""

from __future__ import annotations

from pydantic import Field

from strata_runtime.config import Section


class ReceiveSection(Section):
    """ReceiveMessage."""

    max_messages: int = Field(default=32, ge=1, description="Messages of one answer.")
    max_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Messages of one answer, except that one always goes.",
    )
    max_bytes_in_flight: int = Field(
        default=128 * 1024 * 1024,
        ge=1,
        description="Shared by the receives under way: each may get as much as an equal part.",
    )
    min_polling_ms: int = Field(default=5_000, ge=0, description="Shortest wait for messages.")
    max_polling_ms: int = Field(default=20_000, ge=1_000, description="Longest wait for messages.")
    request_timeout_ms: int = Field(
        default=3_000,
        ge=0,
        description="Taken for a client's request timeout when its settings say none: a receive "
        "that does not say how long it waits leaves half of it.",
    )
    deadline_margin_ms: int = Field(
        default=100, ge=0, description="Kept free before the client's deadline."
    )
    min_invisible_ms: int = Field(default=10_000, ge=0, description="Shortest lease of a receive.")
    max_invisible_ms: int = Field(default=43_200_000, ge=1, description="Longest lease.")
    max_parked: int = Field(default=20_000, ge=1, description="Receives under way.")
    max_parked_per_client: int = Field(default=256, ge=1, description="The same for one client.")
    max_parked_per_connection: int = Field(
        default=1_024, ge=1, description="The same for one connection."
    )
    max_parked_per_address: int = Field(
        default=15_000, ge=1, description="The same for one address of clients."
    )
    max_parked_per_namespace: int = Field(
        default=15_000, ge=1, description="The same for one namespace."
    )
    max_request_bytes: int = Field(
        default=128 * 1024, ge=1_024, description="One request; beyond it PAYLOAD_TOO_LARGE."
    )
    max_parked_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1_024, description="Requests of receives under way."
    )
    max_parked_bytes_per_client: int = Field(
        default=8 * 1024 * 1024,
        ge=1_024,
        description="The same for one client, connection or address.",
    )
    surplus_pause_ms: int = Field(
        default=1_000,
        ge=0,
        description="A receive that is too many for its client is refused after this pause, so "
        "that one that asks again at once does not keep the broker busy.",
    )
    max_surplus: int = Field(
        default=10_000, ge=1, description="Such receives; more are refused at once."
    )
    gone_grace_ms: int = Field(
        default=1_000,
        ge=0,
        description="A pop whose client has gone is ended in storage; if it does not end for this "
        "long, it is given up.",
    )
    first_slice_ms: int = Field(
        default=100,
        ge=1,
        description="First wait at one of the raft groups behind a public queue that moved.",
    )
    max_slice_ms: int = Field(
        default=1_000, ge=1, description="Longest such wait; they double while nothing comes."
    )
    moved_pause_ms: int = Field(
        default=20, ge=1, description="Pause when a queue is not where the metadata say."
    )
    moved_grace_ms: int = Field(
        default=1_000,
        ge=0,
        description="A pop that waits where a queue just left may still be answered for this long.",
    )
    drained_cache_ms: int = Field(
        default=2_000,
        ge=0,
        description="How long an older epoch counts as drained before storage is asked again.",
    )
    max_cached_drains: int = Field(
        default=10_000, ge=1, description="Older epochs known to be drained."
    )
    start_from_latest: bool = Field(
        default=False,
        description="Where a new consumer group starts: at new messages, or at the oldest.",
    )
    max_cached_filters: int = Field(default=4_096, ge=1, description="Parsed filters.")
    max_cached_filter_characters: int = Field(
        default=1024 * 1024, ge=1, description="Their expressions together."
    )
    filter_characters_per_second: int = Field(
        default=128 * 1024,
        ge=1,
        description="SQL92 expressions that nobody sent lately; what is more is TOO_MANY_REQUESTS.",
    )


class PullSection(Section):
    """PullMessage."""

    max_messages: int = Field(default=1_024, ge=1, description="Messages of one answer.")
    max_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Messages of one answer, except that one always goes.",
    )
    max_bytes_in_flight: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Shared by the pulls under way: each may get as much as an equal part.",
    )
    max_parked: int = Field(
        default=10_000, ge=1, description="Pulls under way, until their clients have read them."
    )
    max_parked_per_client: int = Field(default=256, ge=1, description="The same for one client.")
    max_parked_per_connection: int = Field(
        default=1_024, ge=1, description="The same for one connection."
    )
    max_parked_per_address: int = Field(
        default=7_500, ge=1, description="The same for one address of clients."
    )
    max_parked_per_namespace: int = Field(
        default=7_500, ge=1, description="The same for one namespace."
    )
    max_request_bytes: int = Field(
        default=128 * 1024, ge=1_024, description="One request; beyond it PAYLOAD_TOO_LARGE."
    )
    max_parked_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1_024, description="Requests of pulls under way."
    )
    max_parked_bytes_per_client: int = Field(
        default=4 * 1024 * 1024,
        ge=1_024,
        description="The same for one client, connection or address.",
    )
    max_slice_ms: int = Field(
        default=2_000,
        ge=1,
        description="Longest wait in storage; then the raft group is looked up again.",
    )


class AckSection(Section):
    """AckMessage."""

    max_entries: int = Field(default=4_096, ge=1, description="Receipt handles of one request.")
    max_request_bytes: int = Field(
        default=1024 * 1024, ge=1_024, description="One request; beyond it PAYLOAD_TOO_LARGE."
    )
    max_waiting: int = Field(
        default=200_000, ge=1, description="Acks not yet answered; beyond it TOO_MANY_REQUESTS."
    )
    max_waiting_per_client: int = Field(
        default=20_000, ge=1, description="The same for one client, and for one connection."
    )
    max_bytes_waiting: int = Field(
        default=64 * 1024 * 1024, ge=1_024, description="Their requests together."
    )
    max_bytes_waiting_per_client: int = Field(
        default=4 * 1024 * 1024, ge=1_024, description="The same of one client or connection."
    )
