"""Limits and times of one replica; times are ticks, so the core knows no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Settings that all replicas of a raft group should share.

    Attributes:
        election_ticks: silence of the leader that is tolerated at least; also the period in which
            a leader must hear from a majority, and for which a transfer may take.
        heartbeat_ticks: how often a leader speaks when it has nothing to say.
        max_append_bytes: payload bytes in one append request (one entry always fits).
        max_inflight_requests: append requests to one follower that are not yet answered.
        max_inflight_bytes: payload bytes in those requests.
        tells_commit_at_once: whether followers are told of each commit by a request of its own when
            none with entries is due. Otherwise they learn it with the next entries or heartbeat,
            which halves the messages of a raft group with little in flight and delays apply there.
        max_pending_reads: reads that wait for a majority to confirm the leader.
    """

    election_ticks: int = 6
    heartbeat_ticks: int = 1
    max_append_bytes: int = 1 << 20
    max_inflight_requests: int = 64
    max_inflight_bytes: int = 16 << 20
    tells_commit_at_once: bool = True
    max_pending_reads: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError("heartbeat_ticks must be above 0 and below election_ticks")
