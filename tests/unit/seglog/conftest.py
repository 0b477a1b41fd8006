"""Helpers of the CommitLog's tests: short frames, small segments, and a model of the log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from strata_seglog.errors import Corruption
from strata_seglog.frames import Frame, FrameKind, hard_state_frame
from strata_seglog.log import CommitLog, LogOptions
from strata_seglog.ports import Disk

Entries = dict[int, tuple[int, bytes]]
State = tuple[Entries, tuple[int, int, int], bool]


@dataclass
class Model:
    """Content that the log must hold: rule 9 in its simplest form, a dictionary per replica."""

    entries: dict[int, Entries] = field(default_factory=dict)
    hard_states: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    # Every version of every entry that was ever applied, shared by copies.
    written: dict[tuple[int, int], set[tuple[int, bytes]]] = field(default_factory=dict)

    def apply(self, frames: Iterable[Frame]) -> Model:
        for frame in frames:
            replica_id = frame.replica_id
            entries = self.entries.setdefault(replica_id, {})
            payload = b"".join(frame.payload)
            if frame.kind == FrameKind.ENTRY:
                for index in [each for each in entries if each >= frame.index]:
                    del entries[index]
                entries[frame.index] = (frame.term, payload)
                versions = self.written.setdefault((replica_id, frame.index), set())
                versions.add(entries[frame.index])
            elif frame.kind == FrameKind.HARD_STATE:
                vote, commit = (int.from_bytes(payload[at : at + 8], "big") for at in (0, 8))
                self.hard_states[replica_id] = (frame.term, vote, commit)
            elif frame.kind == FrameKind.REMOVED:
                self.removed.add(replica_id)
        return self

    def copy(self) -> Model:
        return Model(
            {key: dict(value) for key, value in self.entries.items()},
            dict(self.hard_states),
            set(self.removed),
            self.written,
        )

    def state(self, low: dict[int, int] | None = None) -> dict[int, State]:
        """Return what a `CommitLog` in this state shows from `low` on."""
        shown = {}
        for replica_id in self.entries:
            if replica_id in self.removed:
                continue
            least = (low or {}).get(replica_id, 0)
            entries = {i: e for i, e in self.entries[replica_id].items() if i >= max(least, 1)}
            shown[replica_id] = (entries, self.hard_states.get(replica_id, (0, 0, 0)), False)
        return {key: each for key, each in shown.items() if each[0] or any(each[1])}


def state_of(log: CommitLog, low: dict[int, int] | None = None) -> dict[int, State]:
    """Return what a log shows, every entry read and checked."""
    shown = {}
    for replica_id, replica in log.replicas().items():
        assert replica.damaged == ""
        if replica.removed:
            continue
        entries: Entries = {}
        first = max(replica.first_index, (low or {}).get(replica_id, 0), 1)
        for index in range(first, replica.last_index + 1):
            stored = log.entry(replica_id, index)
            assert stored is not None, (replica_id, index)
            assert (stored.replica_id, stored.index) == (replica_id, index)
            entries[index] = (stored.term, stored.payload)
        if entries:
            assert entries[replica.last_index][0] == replica.last_term
        assert log.entry(replica_id, replica.last_index + 1) is None
        shown[replica_id] = (entries, (replica.term, replica.vote, replica.commit), False)
    return {key: each for key, each in shown.items() if each[0] or any(each[1])}


def entry(replica_id: int, index: int, term: int = 1, payload: bytes = b"") -> Frame:
    """Return an entry frame whose payload comes in two buffers."""
    payload = payload or f"{replica_id}/{term}/{index}".encode()
    return Frame(
        FrameKind.ENTRY,
        replica_id,
        replica_id * 10,
        term,
        index,
        payload=(payload[:3], payload[3:]),
    )


class Workload:
    """Seeded batches of frames of a few replicas: entries, overwritten suffixes, hard states.

    Now and then a replica's log is truncated by an entry of index 0 and goes on at any index.

    It goes on from what the `Model` given to `batch` holds, as a raft leader would after a
    refused write.
    """

    def __init__(self, seed: int, *, payload_bytes_max: int = 900) -> None:
        self.chance = random.Random(seed)
        self.payload_bytes_max = payload_bytes_max
        self.replicas: tuple[int, ...] = (1, 2, 3)

    def batch(self, model: Model) -> list[Frame]:
        model = model.copy()
        frames: list[Frame] = []
        for _ in range(self.chance.randint(1, 6)):
            replica_id = self.chance.choice(self.replicas)
            entries = model.entries.get(replica_id, {})
            term = model.hard_states.get(replica_id, (1, 0, 0))[0] or 1
            last = max(entries, default=0)
            what = self.chance.random()
            if what < 0.15:
                frame = hard_state_frame(
                    replica_id, replica_id * 10, term + 1, self.chance.randint(1, 3), last
                )
            elif what < 0.17:
                frame = entry(replica_id, 0, last, b"void")
            else:
                index = last + 1
                if entries and what < 0.3:
                    index = self.chance.randint(max(min(entries), last - 3), last)
                if not last:
                    index = self.chance.randint(1, 20) if entries else 1
                index = max(index, 1)
                size = self.chance.choice((0, 1, 50, self.payload_bytes_max))
                body = self.chance.randbytes(self.chance.randint(0, size))
                frame = entry(replica_id, index, term, b"%d:" % index + body)
            frames.append(frame)
            model.apply([frame])
        return frames


class SegLogKit:
    """Common parts of the tests of this folder."""

    Model = Model
    Workload = Workload
    entry = staticmethod(entry)
    state_of = staticmethod(state_of)
    segment_bytes = 16 * 1024

    def options(self, **changes: Any) -> LogOptions:
        """Return small segments and nothing in the background."""
        return replace(LogOptions(segment_bytes=self.segment_bytes, recent_bytes=4_000), **changes)

    def open(
        self, disk: Disk, report: Callable[[Corruption], None] | None = None, **changes: Any
    ) -> CommitLog:
        """Open a log; without `report`, any corruption fails the test."""
        return CommitLog.open(disk, self.options(**changes), report=report or _unexpected)

    def fill(self, log: CommitLog, replica_id: int, indexes: Sequence[int], size: int = 1) -> None:
        """Write and sync one entry per index."""
        for index in indexes:
            log.write_and_sync([entry(replica_id, index, 1, b"%d " % index + b"x" * size)])


def _unexpected(corruption: Corruption) -> None:
    raise AssertionError(f"unexpected corruption: {corruption}")


@pytest.fixture
def kit() -> SegLogKit:
    return SegLogKit()
