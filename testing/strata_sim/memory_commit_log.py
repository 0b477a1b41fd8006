"""A CommitLog in memory, with faults, for tests of the multi-raft driver.

It keeps synced frames and forgets the rest at a "crash". It has the reading side that the driver
uses, rule 9's superseding and a `trim`, nothing else of `strata_seglog.log.CommitLog`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata_seglog.errors import LogError
from strata_seglog.frames import Frame, FrameKind, StoredFrame, decode_hard_state
from strata_seglog.index import VOID_INDEX, ReplicaLog


class MemoryCommitLog:
    """Frames of many replicas. A copy made by `crashed` is what a new process finds."""

    def __init__(self) -> None:
        self.syncs = 0
        # Raised by the next writes, first one first; None lets one write pass.
        self.failures: list[LogError | None] = []
        # Raised by the next calls of `entries`, first one first; None lets one call pass.
        self.read_failures: list[LogError | None] = []
        self.damaged: dict[int, str] = {}
        self.has_recent = True
        self._frames: list[Frame] = []
        self._entries: dict[int, dict[int, StoredFrame]] = {}
        self._removed: set[int] = set()

    def crashed(self) -> MemoryCommitLog:
        """Return the log that a new process opens."""
        survivor = MemoryCommitLog()
        survivor.damaged = dict(self.damaged)
        survivor._keep(self._frames)
        return survivor

    def frames(self) -> list[Frame]:
        """Return all durable frames in order."""
        return list(self._frames)

    def replicas(self) -> dict[int, ReplicaLog]:
        """See `ports.Log`."""
        hard: dict[int, tuple[int, int, int, int]] = {}
        for frame in self._frames:
            known = hard.get(frame.replica_id, (frame.raft_group, 0, 0, 0))
            if frame.kind is FrameKind.HARD_STATE:
                vote, commit = decode_hard_state(b"".join(frame.payload))
                known = (frame.raft_group, frame.term, vote, commit)
            hard[frame.replica_id] = known
        found = {}
        for replica_id, (raft_group, term, vote, commit) in hard.items():
            entries = self._entries.get(replica_id, {})
            runs = self.runs(replica_id)
            last = runs[-1][1] if runs else 0
            found[replica_id] = ReplicaLog(
                replica_id=replica_id,
                raft_group=raft_group,
                first_index=runs[-1][0] if runs else 0,
                last_index=last,
                last_term=entries[last].term if last else 0,
                term=term,
                vote=vote,
                commit=commit,
                removed=replica_id in self._removed,
                damaged=self.damaged.get(replica_id, ""),
                void_until=entries[VOID_INDEX].term if VOID_INDEX in entries else 0,
            )
        return found

    def replica(self, replica_id: int) -> ReplicaLog | None:
        """See `ports.Log`."""
        return self.replicas().get(replica_id)

    def write_and_sync(self, frames: Sequence[Frame]) -> int:
        """See `ports.Log`; all or nothing."""
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.syncs += 1
        self._keep(frames)
        return len(self._frames)

    def entries(
        self, replica_id: int, first: int, last: int, max_bytes: int
    ) -> Iterator[StoredFrame]:
        """See `ports.Log`."""
        failure = self.read_failures.pop(0) if self.read_failures else None
        if failure is not None:
            raise failure
        size_bytes = 0
        for index in range(first, last + 1):
            frame = self._entries.get(replica_id, {}).get(index)
            if frame is None:
                return
            size_bytes += len(frame.payload)
            if index > first and size_bytes > max_bytes:
                return
            yield frame

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """See `ports.Log`."""
        frame = self._entries.get(replica_id, {}).get(index) if self.has_recent else None
        return frame.payload if frame is not None else None

    def term(self, replica_id: int, index: int) -> int | None:
        """See `ports.Log`."""
        frame = self._entries.get(replica_id, {}).get(index)
        return None if frame is None else frame.term

    def runs(self, replica_id: int) -> list[tuple[int, int]]:
        """See `ports.Log`."""
        runs: list[tuple[int, int]] = []
        for index in sorted(index for index in self._entries.get(replica_id, {}) if index):
            if runs and index == runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], index)
            else:
                runs.append((index, index))
        return runs

    def indexes_of_kind(self, replica_id: int, entry_kind: int) -> list[int]:
        """See `ports.Log`."""
        entries = self._entries.get(replica_id, {})
        return sorted(index for index, frame in entries.items() if frame.entry_kind == entry_kind)

    def mark(self) -> None:
        """See `ports.Log`; nothing here can be torn."""

    def trim(self, replica_id: int, first_index: int) -> None:
        """Forget a replica's entries below `first_index`, as freed segments do."""
        self._frames = [
            frame
            for frame in self._frames
            if frame.kind is not FrameKind.ENTRY
            or frame.replica_id != replica_id
            or not 0 < frame.index < first_index
        ]
        entries = self._entries.get(replica_id, {})
        for index in [index for index in entries if 0 < index < first_index]:
            del entries[index]

    def _keep(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self._frames.append(frame)
            if frame.kind is FrameKind.REMOVED:
                self._removed.add(frame.replica_id)
                self._entries.pop(frame.replica_id, None)
            if frame.kind is not FrameKind.ENTRY:
                continue
            entries = self._entries.setdefault(frame.replica_id, {})
            for index in [index for index in entries if index >= frame.index]:
                del entries[index]
            entries[frame.index] = StoredFrame(
                kind=frame.kind,
                replica_id=frame.replica_id,
                raft_group=frame.raft_group,
                term=frame.term,
                index=frame.index,
                entry_kind=frame.entry_kind,
                flags=frame.flags,
                position=len(self._frames),
                payload=b"".join(frame.payload),
            )
