"""Configuration of lite topics."""

from __future__ import annotations

from pydantic import Field

from strata_runtime.config import Section


class LiteSection(Section):
    """Lite topics and their subscriptions."""

    max_cached_numbers: int = Field(
        default=200_000,
        ge=1,
        description="Most lite topics whose number is remembered; the number of any other lite "
        "topic costs a call of a storage node.",
    )
    max_lookups: int = Field(
        default=1_024,
        ge=1,
        description="Most sends and subscriptions that wait for numbers of lite topics, three "
        "quarters of them for one raft group; further ones are refused with TOO_MANY_REQUESTS.",
    )
    max_subscriptions: int = Field(
        default=1_000_000,
        ge=1,
        description="Most subscriptions of lite topics, of the clients of all brokers; a further "
        "one is refused with LITE_SUBSCRIPTION_QUOTA_EXCEEDED.",
    )
    silent_ms: int = Field(
        default=120_000,
        ge=1,
        description="Time after which the subscriptions of a client are forgotten that neither "
        "repeats them nor receives. Clients repeat them every 30 s.",
    )
    look_pause_ms: int = Field(
        default=200,
        ge=1,
        description="Time after which a lite topic is looked at again that gave no message and of "
        "which its storage node does not report new ones.",
    )
    overdue_looks_per_s: int = Field(
        default=100,
        ge=1,
        description="Most lite topics that are looked at in a second because their storage node "
        "has reported nothing of them for storage_client.max_quiet_ms. With more subscriptions a "
        "lite topic is looked at less often than that.",
    )
