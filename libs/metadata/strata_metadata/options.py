"""Limits and times of clients of the nameservers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetadataClientOptions:
    """How calls go to the leader of the metadata raft group.

    Attributes:
        call_timeout_ms: for a call that names no time of its own, all tries together.
        try_timeout_ms: one try at one nameserver, at most half of the call's time: a paused one
            must not use it up.
        first_retry_ms: pause after a round over all nameservers without an answer.
        max_retry_ms: no pause is longer.
        max_channels: connections kept; more than the nameservers are needed only while leader
            hints name others than those configured.
    """

    call_timeout_ms: int = 5_000
    try_timeout_ms: int = 1_000
    first_retry_ms: int = 20
    max_retry_ms: int = 500
    max_channels: int = 16


@dataclass(frozen=True, slots=True)
class MetadataFollowerOptions:
    """How the watch is kept up.

    Attributes:
        first_response_timeout_ms: a source that says nothing for so long after it was asked is
            left for the next one.
        silence_timeout_ms: the same later on; above the sources' `WatchOptions.keepalive_ms`.
        fallback_after_ms: with no nameserver answering for so long, fallback sources are asked.
        went_back_after_ms: when the only nameservers that answer have led for so long with less
            than was told before, they were put back to an older state.
        first_retry_ms: pause after a round over all sources without success.
        max_retry_ms: no pause is longer.
    """

    first_response_timeout_ms: int = 1_000
    silence_timeout_ms: int = 2_000
    fallback_after_ms: int = 1_000
    went_back_after_ms: int = 5_000
    first_retry_ms: int = 50
    max_retry_ms: int = 500


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Limits of a source of watch streams.

    Attributes:
        recent_changes: changes kept in memory for watchers that follow closely; the newest
            revision is kept whatever its size.
        response_changes: changes in one response; other work goes on between two responses.
        max_watchers: streams open at once.
        keepalive_ms: a stream with nothing to tell says so this often.
        snapshot_rows: most rows in one answer; one answer of a million rows would hold up
            everything else for a second. A stream from the start has them in pieces.
    """

    recent_changes: int = 2_048
    response_changes: int = 500
    max_watchers: int = 1_000
    keepalive_ms: int = 500
    snapshot_rows: int = 100_000


@dataclass(frozen=True, slots=True)
class PresenceOptions:
    """How a node shows that it is there.

    Attributes:
        interval_ms: distance of heartbeats.
        timeout_ms: for one heartbeat, tries at several nameservers together.
        register_timeout_ms: for one registration.
        retry_ms: pause after a registration that failed.
    """

    interval_ms: int = 250
    timeout_ms: int = 750
    register_timeout_ms: int = 5_000
    retry_ms: int = 200
