"""The types of a pop's request, of the messages it takes and of its answer, used by `pop.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strata_mq.filters import EVERYTHING, MessageFilter
from strata_mq.leases import Lease, TakeRequest
from strata_storage.base.interests import InterestStream
from strata_storage.leading.pops.candidates import ScanBudget
from strata_storage.leading.pops.lease_set import LeaseSet, Section
from strata_storage.leading.pops.levels import LevelRange
from strata_storage.rows.ownership import Topic

# When a message that cannot be read is tried again whose lease had no end.
_RETRY_UNREADABLE_MS = 60_000


def unreadable_until_ms(lease_end_ms: int, now_ms: int) -> int:
    """Return until when nobody is given a message that cannot be read: its lease would end then."""
    return lease_end_ms or now_ms + _RETRY_UNREADABLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PopCall:
    """One pop.

    `queue` -1: any queue of the topic here. `latest`: where a new group starts. `repeated`: an
    earlier pop of the same attempt may have taken leases that nobody was told of. `taken_only`:
    nothing but these is wanted, by a caller who repeats it. `known_sealed`:
    how many of the queues the caller knows to be sealed here. `message_filter`: what it does not
    let through is consumed, new or leased before. `places_only`: without the messages' bytes.
    `size_bytes`: of its request, which is in memory for as long as it waits. `is_gone`: whether
    nobody is there any more who could be given something. `stream`: its broker is told there when
    more can be taken, unless this pop leaves something behind; None: it does not want to be told.
    `levels`: of a topic of type PRIORITY; None: its queues are looked at in turn.
    """

    consumer_group_id: int
    topic: Topic
    queue: int
    take: TakeRequest
    latest: bool
    wait_s: float
    repeated: bool = False
    taken_only: bool = False
    known_sealed: int = 0
    message_filter: MessageFilter = EVERYTHING
    places_only: bool = False
    size_bytes: int = 0
    is_gone: Callable[[], bool] = lambda: False
    stream: InterestStream | None = None
    levels: LevelRange | None = None


class PopAnswer(NamedTuple):
    """Result of a pop.

    Attributes:
        messages: leased for the caller.
        told_later: nothing is left behind, and the caller is told when that changes.
        unfinished: there was no time to look at everything.
        ready_levels: bit i is set if queue i may have more now; 0 for a pop without levels.
    """

    messages: Sequence[Delivered] = ()
    told_later: bool = False
    unfinished: bool = False
    ready_levels: int = 0


class Delivered(NamedTuple):
    """One message with its lease; a pop of places does not read it unless a filter has to."""

    queue: int
    offset: int
    generation: int
    store_time_ms: int
    lease: Lease
    message: bytes


class Leased(NamedTuple):
    """One lease. The generation is that of the take: a reset may come before the answer."""

    lease_set: LeaseSet
    generation: int
    offset: int
    lease: Lease
    # Never looked at before this pop.
    is_new: bool


@dataclass(slots=True)
class Scan:
    """Result of one scan of the queues: leases with the places of their messages."""

    queues: Sequence[int]
    budget: ScanBudget
    sections: list[Section] = field(default_factory=list)
    leases: list[Leased] = field(default_factory=list)
    taken_bytes: int = 0
    repeated: bool = False
    # A head moved: looking again may give something.
    moved: bool = False
    # Not all that was asked for could be looked at.
    incomplete: bool = False
    # The broker is told when more can be taken.
    told_later: bool = False
