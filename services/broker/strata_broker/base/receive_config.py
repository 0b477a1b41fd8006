"""Configuration of receives, pulls, acks and refused calls; tables of `BrokerConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from strata_mq.requests import DEFAULT_LIMITS
from strata_runtime.config import Section


class ReceiveSection(Section):
    """ReceiveMessage."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "max_slice_ms": "max_look_pause_ms",
        "filter_characters_per_second": "filter_characters_per_s",
    }

    max_messages: int = Field(
        default=DEFAULT_LIMITS.max_receive_batch, ge=1, description="Most messages of one answer."
    )
    max_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Most bytes of messages in one answer; a single message is always allowed.",
    )
    max_bytes_in_flight: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="Most bytes of answers to receives that are being made at the same time; "
        "further receives wait for room before their messages are read.",
    )
    min_polling_ms: int = Field(
        default=DEFAULT_LIMITS.min_polling_ms, ge=0, description="Shortest wait for messages."
    )
    max_polling_ms: int = Field(
        default=DEFAULT_LIMITS.max_polling_ms, ge=1_000, description="Longest wait for messages."
    )
    request_timeout_ms: int = Field(
        default=3_000,
        ge=0,
        description="Request timeout of a client whose settings have none; a receive without a "
        "wait time waits for half of it.",
    )
    deadline_margin_ms: int = Field(
        default=100, ge=0, description="Time to keep free before the client's deadline."
    )
    min_invisible_ms: int = Field(
        default=DEFAULT_LIMITS.min_receive_invisible_ms,
        ge=0,
        description="Shortest lease of a receive.",
    )
    max_invisible_ms: int = Field(
        default=DEFAULT_LIMITS.max_invisible_ms, ge=1, description="Longest lease."
    )
    max_parked: int = Field(
        default=20_000,
        ge=1,
        description="Most concurrent receives. As many clients keep their place in line from a "
        "receive that got no message to the next one.",
    )
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
        default=128 * 1024,
        ge=1_024,
        description="Largest request; a larger one gets PAYLOAD_TOO_LARGE.",
    )
    max_parked_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1_024,
        description="Most bytes of requests of concurrent receives.",
    )
    max_parked_bytes_per_client: int = Field(
        default=8 * 1024 * 1024,
        ge=1_024,
        description="The same for one client, connection or address.",
    )
    surplus_pause_ms: int = Field(
        default=1_000,
        ge=0,
        description="Pause before a receive beyond its client's limit is refused, so that a "
        "client that asks again at once does not keep the broker busy.",
    )
    max_surplus: int = Field(
        default=10_000,
        ge=1,
        description="Most receives that wait for that refusal; further ones are refused at once.",
    )
    gone_grace_ms: int = Field(
        default=1_000,
        ge=0,
        description="Time for storage to end a pop whose client has gone; then the broker "
        "gives it up.",
    )
    moved_pause_ms: int = Field(
        default=20,
        ge=1,
        description="First pause before receives that wait ask again, if a queue is not "
        "where the metadata places it or the storage node does not report new "
        "messages.",
    )
    max_look_pause_ms: int = Field(
        default=1_000,
        ge=1,
        description="Longest such pause; it doubles while no message comes.",
    )
    max_looks_per_line: int = Field(
        default=16,
        ge=1,
        description="Most receives of one topic and consumer group that ask for messages at "
        "the same time. More than one does so only while there are more messages "
        "than a single receive takes.",
    )
    lower_levels_percent: int = Field(
        default=5,
        ge=0,
        le=50,
        description="Least share of lower levels in the messages that a consumer group gets of a "
        "topic of type PRIORITY, while they have messages; 0: the highest level that has "
        "messages always comes first, and the others wait.",
    )
    level_look_ms: int = Field(
        default=100,
        ge=1,
        description="Time for which it counts as known which levels a raft group has; a message "
        "of a higher level in another raft group waits for so long at most.",
    )
    max_serving_orders: int = Field(
        default=10_000,
        ge=1,
        description="Most pairs of a topic of type PRIORITY and a consumer group whose levels are "
        "known; of others, the share of lower levels begins anew.",
    )
    drained_cache_ms: int = Field(
        default=2_000,
        ge=0,
        description="Time for which an older epoch counts as drained; then storage is asked again.",
    )
    max_cached_drains: int = Field(
        default=10_000, ge=1, description="Most older epochs that are remembered as drained."
    )
    unseen_take_back_ms: int = Field(
        default=60_000,
        ge=0,
        description="Time for which a raft group without a leader is asked for the messages that "
        "a receive took there without getting an answer; after it these messages come again when "
        "their time is over, and count as delivered once.",
    )
    max_unseen_take_backs: int = Field(
        default=10_000,
        ge=1,
        description="Most receives whose messages are asked for so at the same time; messages of "
        "further ones come again when their time is over.",
    )
    max_hasty_cancels: int = Field(
        default=10,
        ge=1,
        description="Most receives that a client may cancel in a minute, each within a "
        "second, without using a receipt handle; after more of them its messages "
        "are delivered to other clients.",
    )
    max_unclaimed_leases: int = Field(
        default=50_000,
        ge=1,
        description="Most leases that are remembered so that they can be taken back, of "
        "clients that have used no receipt handle since.",
    )
    max_unclaimed_clients: int = Field(
        default=10_000, ge=1, description="Most clients whose leases are remembered."
    )
    start_from_latest: bool = Field(
        default=False,
        description="Start of a new consumer group: at new messages, or at the oldest message.",
    )
    max_cached_filters: int = Field(
        default=4_096,
        ge=1,
        description="Most parsed filters to cache. The pace of as many clients and of as many "
        "addresses is remembered (`filter_characters_per_s_per_client`).",
    )
    max_cached_filters_per_client: int = Field(
        default=512,
        ge=1,
        description="Most cached filters that one client brought; for more of them the broker "
        "forgets this client's filters.",
    )
    max_cached_filters_per_address: int = Field(
        default=2_048, ge=1, description="The same for one address of clients."
    )
    max_cached_filter_characters: int = Field(
        default=1024 * 1024, ge=1, description="Most characters of cached filters."
    )
    max_cached_filter_characters_per_client: int = Field(
        default=128 * 1024,
        ge=1,
        description="Most characters of cached filters that one client brought; a longer filter "
        "is parsed anew each time.",
    )
    max_cached_filter_characters_per_address: int = Field(
        default=512 * 1024, ge=1, description="The same for one address of clients."
    )
    filter_characters_per_s: int = Field(
        default=128 * 1024,
        ge=1,
        description="Most characters of new filter expressions; more get TOO_MANY_REQUESTS.",
    )
    filter_characters_per_s_per_client: int = Field(
        default=32 * 1024, ge=1, description="The same for one client."
    )
    filter_characters_per_s_per_address: int = Field(
        default=64 * 1024,
        ge=1,
        description="The same for one address of clients; up to half of `filter_characters_per_s`, "
        "nobody at one address can have the new filters of others refused.",
    )


class PullSection(Section):
    """PullMessage."""

    max_messages: int = Field(default=1_024, ge=1, description="Most messages of one answer.")
    max_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="Most bytes of messages in one answer; a single message is always allowed.",
    )
    max_bytes_in_flight: int = Field(
        default=16 * 1024 * 1024,
        ge=1,
        description="Most bytes of answers to pulls that are being made at the same time; "
        "further pulls wait for room before their messages are read.",
    )
    max_parked: int = Field(
        default=10_000,
        ge=1,
        description="Most concurrent pulls; a pull ends when its client has read the answer.",
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
        default=128 * 1024,
        ge=1_024,
        description="Largest request; a larger one gets PAYLOAD_TOO_LARGE.",
    )
    max_parked_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1_024,
        description="Most bytes of requests of concurrent pulls.",
    )
    max_parked_bytes_per_client: int = Field(
        default=4 * 1024 * 1024,
        ge=1_024,
        description="The same for one client, connection or address.",
    )
    max_slice_ms: int = Field(
        default=2_000,
        ge=1,
        description="Longest wait in storage; then the broker looks up the raft group again.",
    )
    max_at_once: int = Field(
        default=2,
        ge=1,
        description="Most pulls whose messages are read at the same time; clients take turns.",
    )
    turn_ms: int = Field(
        default=20,
        ge=1,
        description="A pull counts for `max_at_once` no longer than this: its storage is slow.",
    )


class AckSection(Section):
    """AckMessage."""

    max_entries: int = Field(
        default=4_096, ge=1, description="Most receipt handles of one request."
    )
    max_request_bytes: int = Field(
        default=1024 * 1024,
        ge=1_024,
        description="Largest request; a larger one gets PAYLOAD_TOO_LARGE.",
    )
    max_waiting: int = Field(
        default=200_000,
        ge=1,
        description="Most acks that wait; further acks get TOO_MANY_REQUESTS.",
    )
    max_waiting_per_client: int = Field(
        default=20_000, ge=1, description="The same for one client, and for one connection."
    )
    max_bytes_waiting: int = Field(
        default=64 * 1024 * 1024, ge=1_024, description="Most bytes of requests of acks that wait."
    )
    max_bytes_waiting_per_client: int = Field(
        default=4 * 1024 * 1024, ge=1_024, description="The same for one client or connection."
    )


class RefusalsSection(Section):
    """Calls that are refused because of what their client sent: bad handles, illegal messages."""

    max_entries_per_s: int = Field(
        default=10_000,
        ge=1,
        description="Most refused entries of sends, receives and acks of one connection; "
        "beyond it the next calls of the connection wait.",
    )
    entries_per_call: int = Field(
        default=10,
        ge=0,
        description="Entries that a refused call counts for, in addition to its own.",
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Most connections whose refusals are remembered."
    )
    max_waiting: int = Field(
        default=1_024,
        ge=1,
        description="Most calls of all connections that wait; further calls get TOO_MANY_REQUESTS.",
    )
    max_bytes_waiting: int = Field(
        default=16 * 1024 * 1024, ge=1_024, description="The same in bytes of their requests."
    )
