"""Reads of single messages from the log."""

from __future__ import annotations

import google_crc32c

from strata_seglog.errors import MissingEntry
from strata_storage.reads.reader import NOT_IN_LOG, Location, MessageReader, ReadJob

MESSAGE = b"a message that only the tier has"


class MarkedLog:
    """A log that has nothing but its own mark, in memory, as one that began with a snapshot."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        return b"the mark" if index == NOT_IN_LOG else None

    def read_slice(self, replica_id: int, index: int, offset: int, length: int) -> bytes:
        raise MissingEntry(f"no entry {index}")


async def _now(job: ReadJob) -> list[bytes | None]:
    return job()


async def test_the_mark_of_the_log_is_never_taken_for_a_message() -> None:
    """A message that is not in the log is missing there, whatever the log keeps at that index."""
    corrupt: list[int] = []
    reader = MessageReader(MarkedLog(), 7, _now, on_corrupt=corrupt.append)
    checksum = google_crc32c.value(MESSAGE)
    assert await reader.read([Location(NOT_IN_LOG, 0, len(MESSAGE), checksum)]) == [None]
    assert corrupt == [NOT_IN_LOG]
