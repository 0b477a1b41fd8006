"""Messages by (raft index, place in the entry): from the recent ring, else from disk.

The ring is read on the event loop, because it does no I/O. Everything else goes to a small thread
pool, where every message is compared with its checksum (rule 31): damaged bytes are never served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import google_crc32c

from strata_seglog.errors import LogError


class Location(NamedTuple):
    """Where one stored message is, as its CQ row says."""

    raft_index: int
    at: int
    length: int
    checksum: int


class PayloadLog(Protocol):
    """What the reader needs of the CommitLog."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return a payload that is in memory, else None; no I/O."""

    def read_slice(self, replica_id: int, index: int, offset: int, length: int) -> bytes:
        """Return part of a payload; may read from disk."""


ReadJob = Callable[[], "list[bytes | None]"]
RunRead = Callable[[ReadJob], Awaitable["list[bytes | None]"]]


class MessageReader:
    """Reads messages of one replica.

    Args:
        log: the node's CommitLog.
        replica_id: whose entries.
        run_read: runs a blocking job in the node's bounded pool of reading threads.
        on_corrupt: told the raft index of an entry whose bytes do not match their checksum.
    """

    __slots__ = ("_log", "_on_corrupt", "_replica_id", "_run_read")

    def __init__(
        self, log: PayloadLog, replica_id: int, run_read: RunRead, on_corrupt: Callable[[int], None]
    ) -> None:
        self._log = log
        self._replica_id = replica_id
        self._run_read = run_read
        self._on_corrupt = on_corrupt

    async def read(self, locations: Sequence[Location]) -> list[bytes | None]:
        """Return the messages' bytes in order; None where they are damaged or gone."""
        found, missing = self._read_recent(locations)
        if missing:
            wanted = [locations[at] for at in missing]
            for at, message in zip(
                missing, await self._run_read(lambda: self._read_disk(wanted)), strict=True
            ):
                found[at] = message
                if message is None:
                    self._on_corrupt(locations[at].raft_index)
        return found

    def _read_recent(self, locations: Sequence[Location]) -> tuple[list[bytes | None], list[int]]:
        found: list[bytes | None] = []
        missing: list[int] = []
        last_index, payload = -1, None
        for raft_index, at, length, _ in locations:
            if raft_index != last_index:
                last_index, payload = raft_index, self._log.recent(self._replica_id, raft_index)
            if payload is None:
                missing.append(len(found))
                found.append(None)
            else:
                found.append(payload[at : at + length])
        return found, missing

    def _read_disk(self, locations: Sequence[Location]) -> list[bytes | None]:
        """Read runs of neighbouring messages of one entry with one read each."""
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
            messages += self._read_run(locations[first : last + 1])
            first = last + 1
        return messages

    def _read_run(self, run: Sequence[Location]) -> list[bytes | None]:
        start, end = run[0].at, run[-1].at + run[-1].length
        try:
            data = self._log.read_slice(self._replica_id, run[0].raft_index, start, end - start)
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
