"""The batches of one raft group on their way to it, and who waits for what of them.

Invariant: an entry is told once; one that is taken out of its batch is told by who took it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.append_places import (
    PendingPlace,
    offsets_beside_duplicates,
    pending_places,
)
from strata_mq.layout import BatchBuilder, Checksum, PartKey, PartKind
from strata_mq.requests import RequestError
from strata_runtime.backoff import Backoff
from strata_runtime.tracing import Span

_MOVED = frozenset(
    (
        storage_pb2.OUTCOME_WRONG_GROUP,
        storage_pb2.OUTCOME_SEALED,
        storage_pb2.OUTCOME_REHASHED,
    )
)
NO_RESULT = storage_pb2.PartResult()


class Waiter(Protocol):
    """A waiter for staged messages; `indexes` are its own numbers for them."""

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """The messages are durable at these offsets."""

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """The messages are durable and wait, or a first one with the same id did and is placed."""

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """The messages were not stored, or that is unknown (a timeout)."""

    def failed(self) -> None:
        """A call of the waiter failed unexpectedly: answer with an error, expect nothing more."""

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """The raft group does not take them into the queue: choose anew and stage again.

        Args:
            indexes: which messages.
            raft_group: which one it was.
            key: the part they were in.
            result: why not, and where the queue is if that is known.
        """


class StagedMessages(NamedTuple):
    """Messages of one waiter in one part of a batch."""

    waiter: Waiter
    indexes: Sequence[int]
    key: PartKey
    part: int
    first: int
    deadline_s: float


class AppendBatch:
    """A batch being filled, waiting, or under way."""

    __slots__ = (
        "builder",
        "data",
        "deadline_s",
        "entries",
        "is_uncertain",
        "may_be_stored",
        "sequence",
        "spans",
    )

    def __init__(self, checksum: Checksum) -> None:
        self.builder = BatchBuilder(checksum)
        self.entries: list[StagedMessages] = []
        self.deadline_s = 0.0
        # Traces of its messages.
        self.spans: list[Span] = []
        # A leader took it and did not commit it in time.
        self.is_uncertain = False
        # A try has no result: what a later one meets tells nothing about it.
        self.may_be_stored = False
        # Set when the batch is first sent; repeats keep both.
        self.data = b""
        self.sequence = 0

    def take_late(self, now_s: float) -> list[StagedMessages]:
        """Take out the entries whose waiters wait no longer; the others stay with the batch."""
        late = [entry for entry in self.entries if entry.deadline_s <= now_s]
        if late:
            self.entries = [entry for entry in self.entries if entry.deadline_s > now_s]
        return late


class AppendLane:
    """The batches of one raft group, oldest first."""

    __slots__ = (
        "alone",
        "asked",
        "backoff",
        "hindrance",
        "last_sequence",
        "pause",
        "raft_group",
        "ready",
        "waiting",
    )

    def __init__(self, raft_group: int, backoff: Backoff) -> None:
        self.raft_group = raft_group
        self.backoff = backoff
        self.waiting: deque[AppendBatch] = deque()
        # At most one of the three is set. The node in the list of whose next call it is,
        self.ready = ""
        # the node that was asked in a call under way,
        self.asked = ""
        # the pause before a repeat.
        self.pause: asyncio.TimerHandle | None = None
        self.last_sequence = 0
        # The first batch was too large for its call: it needs its own call.
        self.alone = False
        # Why the last try of the first batch failed, "" before the first.
        self.hindrance = ""

    @property
    def idle(self) -> bool:
        """Whether it has no batch."""
        return not self.ready and not self.asked and self.pause is None


def tell(entry: StagedMessages, raft_group: int, part: storage_pb2.PartResult) -> None:
    """Tell a waiter what became of its messages in an accepted batch."""
    if part is NO_RESULT:
        failure = errors.refused(storage_pb2.OUTCOME_INVALID, "no result for a part of a batch")
        entry.waiter.refused(entry.indexes, failure)
    elif part.outcome in _MOVED:
        entry.waiter.moved(entry.indexes, raft_group, entry.key, part)
    elif part.outcome not in (storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK):
        entry.waiter.refused(entry.indexes, errors.refused(part.outcome))
    elif entry.key.kind is not PartKind.PLAIN:
        entry.waiter.pending(
            entry.indexes, raft_group, pending_places(entry.first, len(entry.indexes), part)
        )
    elif part.duplicates:
        entry.waiter.stored(
            entry.indexes, offsets_beside_duplicates(entry.first, len(entry.indexes), part)
        )
    else:
        base = part.base_offset + entry.first
        entry.waiter.stored(entry.indexes, range(base, base + len(entry.indexes)))
