"""Messages by (raft index, place in the entry): from the recent ring, else from disk.

The ring is read on the event loop, because it does no I/O. Everything else goes to a small thread
pool, where every message is compared with its checksum (rule 31): damaged bytes are never served. A
read error of the disk is not damage (rule 40): it is reported apart, and the next read tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import OutgoingMessage
from strata_seglog.errors import LogError, ReadFailed
from strata_storage.base.errors import Refused
from strata_storage.rows.payloads import PayloadReader

# Entries whose last read failed that are remembered, to tell why they are missing.
_FAILED_MAX = 1_000

NOT_IN_LOG = 0
"""Raft index in rows of messages that only the tier has; entries are numbered from 1."""


class Location(NamedTuple):
    """Where one stored message is, as its CQ row says, and what it is called in the tier.

    A message that waits has no offset (-1): it is in the log only.
    """

    raft_index: int
    at: int
    length: int
    checksum: int
    topic_id: int = 0
    queue: int = 0
    offset: int = -1


class PayloadLog(Protocol):
    """The part of the CommitLog that the reader needs."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return a payload that is in memory, else None; no I/O."""

    def read_slice(self, replica_id: int, index: int, offset: int, length: int) -> bytes:
        """Return part of a payload; may read from disk."""


ReadJob = Callable[[], "list[bytes | None]"]
OnFailed = Callable[[int, str], None]
RunRead = Callable[[ReadJob], Awaitable["list[bytes | None]"]]


class MessageReader:
    """Reads messages of one replica.

    Args:
        log: the node's CommitLog.
        replica_id: whose entries.
        run_read: runs a blocking job in the node's bounded pool of reading threads.
        on_corrupt: told the raft index of an entry whose bytes do not match their checksum.
        on_failed: told the raft index of an entry that the disk could not read, and why.
    """

    __slots__ = ("_failed", "_log", "_on_corrupt", "_on_failed", "_replica_id", "_run_read")

    def __init__(
        self,
        log: PayloadLog,
        replica_id: int,
        run_read: RunRead,
        *,
        on_corrupt: Callable[[int], None],
        on_failed: OnFailed = lambda raft_index, reason: None,
    ) -> None:
        self._log = log
        self._replica_id = replica_id
        self._run_read = run_read
        self._on_corrupt = on_corrupt
        self._on_failed = on_failed
        # raft index -> why the disk could not read it the last time
        self._failed: dict[int, str] = {}

    async def read(
        self, locations: Sequence[Location], consumer_group: int = 0
    ) -> list[bytes | None]:
        """Return the messages' bytes in order; None where they are damaged, gone or unreadable.

        Args:
            locations: where they are.
            consumer_group: for whom; a reader that goes on where it stopped is read ahead of.

        Raises:
            Refused: too many reads wait, or a message is in the tier only, which is not reached.
        """
        found = await self._read_log(locations)
        if None in found:
            self._report(locations, found)
        return found

    async def warm(self, locations: Sequence[Location], consumer_group: int = 0) -> None:
        """Fetch what takes long to be read, before anything is decided on it: here nothing.

        Raises:
            Refused: it cannot be read now.
        """

    async def outgoing(self, location: Location) -> OutgoingMessage:
        """Return a message that the log may lack, to be stored once more: here there is none.

        Raises:
            Refused: OUTCOME_CORRUPT, it is nowhere; OUTCOME_OVERLOADED, it cannot be read now.
        """
        raise Refused(pb.OUTCOME_CORRUPT, f"entry {location.raft_index} is not in the log")

    def refusal_of(self, location: Location, what: str) -> Refused:
        """Return why a message was not read just now: it is damaged, or may be read again."""
        failure = self._failed.get(location.raft_index)
        if failure is not None:
            return Refused(pb.OUTCOME_UNREADABLE, f"{what} cannot be read now: {failure}")
        return Refused(pb.OUTCOME_CORRUPT, f"{what} is damaged on disk")

    async def _read_log(self, locations: Sequence[Location]) -> list[bytes | None]:
        """Return what the log has, in order; None where it has nothing, or damaged bytes."""
        found, missing = self._read_recent(locations)
        if missing:
            wanted = [locations[at] for at in missing]
            failed: dict[int, str] = {}
            read = await self._run_read(lambda: self._read_disk(wanted, failed))
            for at, message in zip(missing, read, strict=True):
                found[at] = message
            self._note_failures(wanted, failed)
        return found

    def _report(self, locations: Sequence[Location], found: Sequence[bytes | None]) -> None:
        """Tell of the messages that were not found, or damaged."""
        for location, message in zip(locations, found, strict=True):
            if message is None:
                failure = self._failed.get(location.raft_index)
                if failure is None:
                    self._on_corrupt(location.raft_index)
                else:
                    self._on_failed(location.raft_index, failure)

    def _note_failures(self, wanted: Sequence[Location], failed: dict[int, str]) -> None:
        """Remember what could not be read of what was wanted, and forget what could."""
        if self._failed:
            for location in wanted:
                self._failed.pop(location.raft_index, None)
        if failed:
            if len(self._failed) > _FAILED_MAX:
                self._failed.clear()
            self._failed.update(failed)

    def _read_recent(self, locations: Sequence[Location]) -> tuple[list[bytes | None], list[int]]:
        found: list[bytes | None] = []
        missing: list[int] = []
        last_index, payload = -1, None
        for raft_index, at, length, *_ in locations:
            if raft_index != last_index:
                last_index, payload = raft_index, self._recent(raft_index)
            if payload is None:
                missing.append(len(found))
                found.append(None)
            else:
                found.append(payload[at : at + length])
        return found, missing

    def _recent(self, raft_index: int) -> bytes | None:
        # The log keeps a mark of its own under the index that says "not here".
        if raft_index == NOT_IN_LOG:
            return None
        return self._log.recent(self._replica_id, raft_index)

    def _read_disk(
        self, locations: Sequence[Location], failed: dict[int, str]
    ) -> list[bytes | None]:
        """Read runs of neighbouring messages of one entry with one read each.

        Entries that the disk cannot read go into `failed`, by raft index. Runs in a thread.
        """
        messages: list[bytes | None] = []
        first = 0
        while first < len(locations):
            last = first
            while (
                last + 1 < len(locations)
                and locations[last + 1].raft_index == locations[first].raft_index
                and locations[last + 1].at == locations[last].at + locations[last].length
            ):
                last += 1
            messages += self._read_run(locations[first : last + 1], failed)
            first = last + 1
        return messages

    def _read_run(self, run: Sequence[Location], failed: dict[int, str]) -> list[bytes | None]:
        start, end = run[0].at, run[-1].at + run[-1].length
        try:
            data = self._log.read_slice(self._replica_id, run[0].raft_index, start, end - start)
        except ReadFailed as error:
            failed[run[0].raft_index] = str(error)
            return [None] * len(run)
        except LogError:
            return [None] * len(run)
        messages: list[bytes | None] = []
        for location in run:
            message = data[location.at - start : location.at - start + location.length]
            intact = (
                len(message) == location.length
                and google_crc32c.value(message) == location.checksum
            )
            messages.append(message if intact else None)
        return messages


class LogReaders(NamedTuple):
    """The two ways into a replica's log, for the leader that serves and moves its messages."""

    messages: MessageReader
    payloads: PayloadReader
