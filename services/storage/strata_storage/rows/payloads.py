"""Whole payloads of entries by raft index, for rare readers (dead letters, rebuilds)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.errors import LogError, ReadFailed
from strata_seglog.frames import StoredFrame
from strata_storage.base.errors import Refused


class EntryLog(Protocol):
    """The part of the CommitLog that is needed."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return a payload that is in memory."""

    def entry(self, replica_id: int, index: int) -> StoredFrame | None:
        """Return an entry, its checksum compared."""


RunPayload = Callable[[Callable[[], "StoredFrame | None"]], Awaitable["StoredFrame | None"]]


class PayloadReader:
    """Reads payloads of one replica; from disk in the node's reading threads."""

    __slots__ = ("_log", "_replica_id", "_run_read")

    def __init__(self, log: EntryLog, replica_id: int, run_read: RunPayload) -> None:
        self._log = log
        self._replica_id = replica_id
        self._run_read = run_read

    async def read(self, index: int) -> bytes:
        """Return an entry's payload.

        Raises:
            Refused: OUTCOME_CORRUPT; OUTCOME_OVERLOADED, the disk could not read it now (rule 40).
        """
        recent = self._log.recent(self._replica_id, index)
        if recent is not None:
            return recent
        try:
            frame = await self._run_read(lambda: self._log.entry(self._replica_id, index))
        except ReadFailed as error:
            raise Refused(pb.OUTCOME_OVERLOADED, f"entry {index}: {error}") from error
        except LogError as error:
            raise Refused(pb.OUTCOME_CORRUPT, f"entry {index}: {error}") from error
        if frame is None:
            raise Refused(pb.OUTCOME_CORRUPT, f"entry {index} is not in the log")
        return frame.payload
