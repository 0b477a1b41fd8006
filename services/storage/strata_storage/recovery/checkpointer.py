"""When checkpoints are written, and up to which entry the newest one of a replica is (rule 6).

A checkpoint is of whole rows: of a replica that takes in a snapshot none is begun, and one that was
begun before is left without its last part, so that it counts as none (rule 38).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from strata_multiraft import DiskFull
from strata_runtime.logs import get_logger
from strata_seglog.errors import LogError
from strata_seglog.frames import Frame
from strata_seglog.log import CommitLog
from strata_state.ports import StateError
from strata_storage.config import RetentionOptions
from strata_storage.engine import GroupEngine
from strata_storage.errors import Refused
from strata_storage.recovery.checkpoint import encode_checkpoint

# Of one group commit, unless one frame alone has more; it must fit into the smallest segment.
_WRITE_BYTES = 2 * 1024 * 1024


class CheckpointReplica(Protocol):
    """What is needed of a replica."""

    def write_checkpoint(self, frames: Sequence[Frame]) -> Awaitable[int]:
        """Write frames with the next group commit."""


RunFrames = Callable[[Callable[[], "list[Frame]"]], Awaitable["list[Frame]"]]


class Checkpointer:
    """Writes checkpoints for the replicas of one node.

    Args:
        log: of the node.
        options: when one is due.
        run_read: runs what reads rows in a thread.
        on_written: told of each one that is whole.

    Attributes:
        indexes: replica id -> applied index of its newest checkpoint.
    """

    def __init__(
        self,
        log: CommitLog,
        options: RetentionOptions,
        run_read: RunFrames,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._options = options
        self._run_read = run_read
        self._on_written = on_written
        self._positions: dict[int, int] = {}
        # Checkpoints make no checkpoint due: rows that are more than `checkpoint_log_bytes` would
        # be written without end.
        self._checkpoint_bytes = 0
        # Replica id -> `_log_bytes` behind its newest checkpoint.
        self._marks: dict[int, int] = {}
        self._logger = get_logger("storage")
        self.indexes: dict[int, int] = {}
        self._wanted: set[int] = set()
        # Parts of two checkpoints of one replica must not mingle.
        self._writing = asyncio.Lock()

    def opened(self, replica_id: int) -> None:
        """Find a replica's newest checkpoint; one that is damaged does not count. Blocks."""
        self._positions[replica_id] = self._log.first_position
        self._marks[replica_id] = min(self._log.first_position, self._log_bytes())
        try:
            positions = self._log.checkpoints(replica_id)
            if positions:
                self.indexes[replica_id] = self._log.read_at(positions[0]).index
                self._positions[replica_id] = positions[0]
                self._marks[replica_id] = positions[-1] - self._checkpoint_bytes
        except LogError as error:
            # A new one is written when the segment with this one is to go.
            self._logger.warning("checkpoint is damaged", replica_id=replica_id, reason=str(error))

    def want(self, replica_id: int) -> None:
        """Write a checkpoint soon: the rows came by a snapshot, the log alone cannot give them."""
        self._wanted.add(replica_id)
        self.indexes.pop(replica_id, None)

    def removed(self, replica_id: int) -> None:
        """Forget a replica that is hosted no more."""
        self._wanted.discard(replica_id)
        self._positions.pop(replica_id, None)
        self._marks.pop(replica_id, None)
        self.indexes.pop(replica_id, None)

    async def write_due(
        self, engines: Sequence[GroupEngine], replicas: Mapping[int, CheckpointReplica]
    ) -> None:
        """Write a checkpoint where enough log came since the last one, or one is wanted."""
        async with self._writing:
            for engine in engines:
                since = self._log_bytes() - self._marks.get(engine.replica_id, 0)
                is_due = since >= self._options.checkpoint_log_bytes
                if (
                    (is_due or engine.replica_id in self._wanted)
                    and self._has_news(engine)
                    and self._is_whole(engine)
                ):
                    await self._write(engine, replicas.get(engine.raft_group))

    async def write_behind(
        self, engines: Sequence[GroupEngine], replicas: Mapping[int, CheckpointReplica]
    ) -> None:
        """Write checkpoints that the freeing of the oldest segment waits for."""
        async with self._writing:
            segments = self._log.segments()
            second = segments[1].first_position if len(segments) > 1 else 0
            for engine in engines:
                replica_id = engine.replica_id
                in_first = self._positions.get(replica_id, 0) < second
                too_old = self.indexes.get(replica_id, 0) + 1 < engine.machine.low_index
                if (in_first or too_old) and self._is_whole(engine):
                    await self._write(engine, replicas.get(engine.raft_group))

    def _log_bytes(self) -> int:
        """Return where the log ends, without the checkpoints that were written here."""
        return self._log.end_position - self._checkpoint_bytes

    def _is_whole(self, engine: GroupEngine) -> bool:
        """Whether its rows may stand for its log: those of a damaged replica must not."""
        has_rows = bool(engine.machine.applied_index()) and engine.whole_rows() is not None
        return has_rows and not engine.replica.read_only

    def _has_news(self, engine: GroupEngine) -> bool:
        return engine.machine.applied_index() > self.indexes.get(engine.replica_id, 0)

    async def _write(self, engine: GroupEngine, replica: CheckpointReplica | None) -> None:
        """Write a checkpoint of a replica that was just found to be whole."""
        if replica is None:
            # It was removed since the caller looked.
            return
        generation, position = engine.whole_rows(), self._log.end_position
        try:
            # The rows are as of now; a thread reads them, for there may be many.
            engine.machine.settle()
            rows, applied = engine.machine.rows.checkpoint(), engine.machine.state
            frames = encode_checkpoint(rows, engine.raft_group, engine.replica_id, applied)
            # Some at a time: the rows of key-value tables may be more than memory.
            while some := await self._run_read(lambda: _some(frames)):
                if engine.whole_rows() != generation:
                    return
                await replica.write_checkpoint(some)
                self._checkpoint_bytes += sum(_size_bytes(frame) for frame in some)
        except DiskFull:
            # The older one still holds; it is tried again.
            return
        except (StateError, Refused) as error:
            self._logger.warning(
                "checkpoint waits", raft_group=engine.raft_group, reason=str(error)
            )
            return
        if engine.whole_rows() != generation:
            # A snapshot came: one of its rows is wanted now.
            return
        self._wanted.discard(engine.replica_id)
        self._positions[engine.replica_id] = position
        self._marks[engine.replica_id] = self._log_bytes()
        self.indexes[engine.replica_id] = applied.raft_index
        self._on_written()


def _some(frames: Iterator[Frame]) -> list[Frame]:
    """Return the next frames for one write; none: there are no more."""
    taken: list[Frame] = []
    size_bytes = 0
    while size_bytes < _WRITE_BYTES and (frame := next(frames, None)) is not None:
        taken.append(frame)
        size_bytes += _size_bytes(frame)
    return taken


def _size_bytes(frame: Frame) -> int:
    return sum(map(len, frame.payload))
