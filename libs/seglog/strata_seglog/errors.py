"""Errors of a CommitLog, as types that differ in what is still possible afterwards.

| error | afterwards |
|---|---|
| `DiskFull`, `WriteFailed` | nothing of the write is in the log; it stays usable |
| `WriteTooLarge` | the caller splits what it writes |
| `CorruptFrame`, `ReadFailed` | this frame cannot be served; others can |
| `LogFailed` | nothing: the process must end (rule 7) |
"""

from __future__ import annotations

from dataclasses import dataclass


class LogError(Exception):
    """Base of what the CommitLog raises on purpose."""


class CorruptFrame(LogError):
    """The bytes of a frame are not what was written; they are never returned.

    Attributes:
        position: log position of the frame.
        segment: file name.
        reason: what does not fit.
    """

    def __init__(self, position: int, segment: str, reason: str) -> None:
        super().__init__(f"{segment}: frame at {position} is corrupt: {reason}")
        self.position = position
        self.segment = segment
        self.reason = reason


class DiskFull(LogError):
    """No room. Writes since the last sync are lost, synced writes remain (rule 11)."""


class WriteFailed(LogError):
    """The disk refused a write for another reason than room; the log is as after `DiskFull`."""


class ReadFailed(LogError):
    """The disk could not read a frame; another replica may have it."""


class MissingEntry(LogError):
    """The log holds no such entry (any more)."""


class WriteTooLarge(LogError):
    """One write does not fit into one segment, or a frame is above `max_frame_bytes`."""


class LogFailed(LogError):
    """A sync failed. It is unknown what is durable, so the process must end; never retried."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """Something found to be damaged.

    Attributes:
        segment: file name.
        position: log position where good bytes end.
        reason: what does not fit.
        replica_ids: replicas that lost something live by it; they must not vote (rule 8).
            None: the header is unreadable, so it may be any replica's.
    """

    segment: str
    position: int
    reason: str
    replica_ids: tuple[int, ...] | None = ()

    def __str__(self) -> str:
        return f"{self.segment}: at {self.position}: {self.reason}"
