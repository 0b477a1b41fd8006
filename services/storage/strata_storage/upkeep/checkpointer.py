"""When checkpoints are written, and up to which entry the newest one of a replica is (rule 6).

A checkpoint is of whole rows: of a replica that takes in a snapshot none is begun, and one that was
begun before is left without its last part, so that it counts as none (rule 38). Replicas take turns
of a few MiB each: one with very many rows holds up no other (rule 39).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from strata_multiraft import LogFull
from strata_runtime.logs import get_logger
from strata_seglog.errors import LogError
from strata_seglog.frames import Frame
from strata_seglog.log import CommitLog
from strata_state.ports import StateError
from strata_storage.base.config import RetentionOptions
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.upkeep.checkpoint import CheckpointError, encode_checkpoint

# Limit of a group commit, unless one frame alone has more; it fits into the smallest segment.
_WRITE_BYTES = 2 * 1024 * 1024
# Checkpoints that take turns: each keeps a picture of the rows, and with it what changed since.
_OPEN_MAX = 8


class CheckpointReplica(Protocol):
    """The part of a replica that is needed."""

    def write_checkpoint(self, frames: Sequence[Frame]) -> Awaitable[int]:
        """Write frames with the next group commit."""


class _Writing:
    """A checkpoint in the making.

    Attributes:
        generation, applied: of the rows that it is of.
        position: where the log ended when it began.
        frames: those that are not written.
        size_bytes: of those that are written.
    """

    __slots__ = ("applied", "engine", "frames", "generation", "position", "replica", "size_bytes")

    def __init__(self, engine: GroupEngine, replica: CheckpointReplica, position: int) -> None:
        self.engine = engine
        self.replica = replica
        self.position = position
        self.generation = engine.whole_rows()
        engine.machine.settle()
        rows, self.applied = engine.machine.rows.checkpoint(), engine.machine.state
        self.frames = encode_checkpoint(rows, engine.raft_group, engine.replica_id, self.applied)
        self.size_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether the rows are still those that it is of."""
        return self.engine.whole_rows() == self.generation


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
        *,
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
        # Replica id -> size of its newest checkpoint.
        self._sizes_bytes: dict[int, int] = {}
        self._logger = get_logger("storage")
        self.indexes: dict[int, int] = {}
        self._wanted: set[int] = set()
        # Parts of two checkpoints of one replica must not mingle.
        self._writing = asyncio.Lock()

    def opened(self, replica_id: int) -> None:
        """Find a replica's newest checkpoint; one that is damaged does not count. Blocks.

        A crash may have come after a snapshot was taken in and before its checkpoint was written
        (`want`): where the log does not reach back to a checkpoint, one is wanted (rule 6).
        """
        self._positions[replica_id] = self._log.first_position
        self._marks[replica_id] = min(self._log.first_position, self._log_bytes())
        try:
            positions = self._log.checkpoints(replica_id)
            if positions:
                self.indexes[replica_id] = self._log.read_at(positions[0]).index
                self._positions[replica_id] = positions[0]
                self._marks[replica_id] = positions[-1] - self._checkpoint_bytes
                # Without its last part, and with what came in between: near enough.
                self._sizes_bytes[replica_id] = positions[-1] - positions[0]
        except LogError as error:
            # A new one is written when the segment with this one is to go.
            self._logger.warning("checkpoint is damaged", replica_id=replica_id, reason=str(error))
        found = self._log.replica(replica_id)
        if found is None:
            return
        # Without entries all that the rows have came by a snapshot, or is in the checkpoint: then
        # there are no news, and none is written.
        if not found.last_index or found.first_index > self.indexes.get(replica_id, 0) + 1:
            self._wanted.add(replica_id)

    def want(self, replica_id: int) -> None:
        """Write a checkpoint soon: the rows came by a snapshot, the log alone cannot give them."""
        self._wanted.add(replica_id)
        self.indexes.pop(replica_id, None)

    def removed(self, replica_id: int) -> None:
        """Forget a replica that is hosted no more."""
        self._wanted.discard(replica_id)
        self._positions.pop(replica_id, None)
        self._marks.pop(replica_id, None)
        self._sizes_bytes.pop(replica_id, None)
        self.indexes.pop(replica_id, None)

    async def write_due(
        self, engines: Sequence[GroupEngine], replicas: Mapping[int, CheckpointReplica]
    ) -> None:
        """Write a checkpoint where enough log came since the last one, or one is wanted."""

        def is_due(engine: GroupEngine) -> bool:
            due = self._since_bytes(engine) >= self._options.checkpoint_log_bytes
            return (due or engine.replica_id in self._wanted) and self._has_news(engine)

        async with self._writing:
            await self._write_all(engines, replicas, is_due)

    async def write_behind(
        self,
        engines: Sequence[GroupEngine],
        replicas: Mapping[int, CheckpointReplica],
        *,
        room_is_short: bool,
    ) -> None:
        """Write checkpoints that the freeing of the oldest segment waits for.

        Args:
            engines: of all raft groups hosted here.
            replicas: raft group -> replica.
            room_is_short: free the segment whatever it costs. Else it waits until as much other
                log came as there are checkpoints, at most `checkpoint_log_bytes`: checkpoints of
                more than a segment are always in the oldest one, and would be written without end.
        """
        async with self._writing:
            segments = self._log.segments()
            if len(segments) < 2:
                return
            oldest, second = segments[0], segments[1].first_position
            worth_bytes = 0 if room_is_short else self._worth_bytes()

            def is_behind(engine: GroupEngine) -> bool:
                replica_id = engine.replica_id
                _, last = oldest.replicas.get(replica_id, (0, 0))
                known, applied = self.indexes.get(replica_id, 0), engine.machine.applied_index()
                is_inside = self._positions.get(replica_id, 0) < second
                # Entries that are not applied stay, whatever is written.
                is_in_the_way = is_inside or known < last <= applied
                return is_in_the_way and self._since_bytes(engine) >= worth_bytes

            await self._write_all(engines, replicas, is_behind)

    def _since_bytes(self, engine: GroupEngine) -> int:
        """Return how much log came since a replica's newest checkpoint, without checkpoints."""
        return self._log_bytes() - self._marks.get(engine.replica_id, 0)

    def _worth_bytes(self) -> int:
        """Return how much other log is worth writing all checkpoints again."""
        return min(sum(self._sizes_bytes.values()), self._options.checkpoint_log_bytes)

    def _log_bytes(self) -> int:
        """Return where the log ends, without the checkpoints that were written here."""
        return self._log.end_position - self._checkpoint_bytes

    def _is_whole(self, engine: GroupEngine) -> bool:
        """Whether its rows may stand for its log: those of a damaged replica must not."""
        has_rows = bool(engine.machine.applied_index()) and engine.whole_rows() is not None
        return has_rows and not engine.replica.read_only

    def _has_news(self, engine: GroupEngine) -> bool:
        return engine.machine.applied_index() > self.indexes.get(engine.replica_id, 0)

    async def _write_all(
        self,
        engines: Sequence[GroupEngine],
        replicas: Mapping[int, CheckpointReplica],
        is_wanted: Callable[[GroupEngine], bool],
    ) -> None:
        """Write checkpoints by turns; what is wanted is asked right before each one begins."""
        waiting, writing = deque(engines), deque[_Writing]()
        while waiting or writing:
            while waiting and len(writing) < _OPEN_MAX:
                engine = waiting.popleft()
                replica = replicas.get(engine.raft_group)
                # Without a replica: it was removed since the caller looked.
                if replica is not None and is_wanted(engine) and self._is_whole(engine):
                    begun = self._begin(engine, replica)
                    if begun is not None:
                        writing.append(begun)
            if writing:
                turn = writing.popleft()
                if await self._turn(turn):
                    writing.append(turn)

    def _begin(self, engine: GroupEngine, replica: CheckpointReplica) -> _Writing | None:
        """Begin a checkpoint of a replica that was just found to be whole; None: not now."""
        try:
            return _Writing(engine, replica, self._log.end_position)
        except (StateError, Refused) as error:
            self._waits(engine, error)
            return None

    async def _turn(self, writing: _Writing) -> bool:
        """Write some of a checkpoint; False: it is done, or given up."""
        try:
            # A thread reads the rows, for there may be many; those of key-value tables may be more
            # than memory.
            some = await self._run_read(lambda: _some(writing.frames))
            # A snapshot may come meanwhile: a checkpoint of its rows is wanted then.
            if some and writing.is_whole:
                await writing.replica.write_checkpoint(some)
                size_bytes = sum(_size_bytes(frame) for frame in some)
                writing.size_bytes += size_bytes
                self._checkpoint_bytes += size_bytes
                return True
        except LogFull:
            # The older one still holds; it is tried again.
            return False
        except (StateError, Refused, CheckpointError) as error:
            self._waits(writing.engine, error)
            return False
        if writing.is_whole:
            self._written(writing)
        return False

    def _written(self, writing: _Writing) -> None:
        replica_id = writing.engine.replica_id
        if replica_id not in self._marks:
            # It was removed meanwhile.
            return
        self._wanted.discard(replica_id)
        self._positions[replica_id] = writing.position
        self._marks[replica_id] = self._log_bytes()
        self._sizes_bytes[replica_id] = writing.size_bytes
        self.indexes[replica_id] = writing.applied.raft_index
        self._on_written()

    def _waits(self, engine: GroupEngine, error: Exception) -> None:
        self._logger.warning("checkpoint waits", raft_group=engine.raft_group, reason=str(error))


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
