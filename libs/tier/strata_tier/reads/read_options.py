"""Limits of reading from the tier."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class TierReadOptions:
    """Limits of one node's reads, shared by all raft groups and consumer groups.

    Attributes:
        tail_bytes: what is read of an object's end to open it; its index mostly lies in it.
        request_bytes: blocks side by side are read together up to this; a larger read is cut and
            its parts are read at once.
        cache_bytes: blocks and columns in memory.
        cache_ttl_s: a block nobody used for so long goes.
        index_bytes: indexes of objects in memory.
        flights_max: reads under way, those of read-ahead too; one more is refused.
        damaged_attempts: reads of the same bytes before they count as damaged: a store may send
            wrong bytes once.
        pieces_at_once: blocks of one read that are read in pieces at a time.
        gap_bytes: what lies between two wanted messages is read with them if it is not more.
        runs_max: a block of which more runs of messages are wanted is read whole: a request costs
            more than the bytes between two runs.
        sparse_share: a read that wants less than this share of the messages between its first
            and its last one fetches them in pieces, not whole blocks.
        ahead_first_bytes: first read-ahead of a reader that goes on where it stopped.
        ahead_step_bytes: by how much it grows with each read that it served.
        ahead_max_bytes: its largest.
        ahead_readers_max: readers whose pace is remembered; the one idle for longest goes.
    """

    tail_bytes: int = 64 * _KIB
    request_bytes: int = 8 * _MIB
    cache_bytes: int = 256 * _MIB
    cache_ttl_s: float = 60.0
    index_bytes: int = 64 * _MIB
    flights_max: int = 256
    damaged_attempts: int = 3
    pieces_at_once: int = 16
    gap_bytes: int = 16 * _KIB
    runs_max: int = 4
    sparse_share: float = 0.5
    ahead_first_bytes: int = 2 * _MIB
    ahead_step_bytes: int = 2 * _MIB
    ahead_max_bytes: int = 32 * _MIB
    ahead_readers_max: int = 10_000
