"""Messages of an upload, read from the entries that their rows name."""

from __future__ import annotations

import google_crc32c
import pytest

from strata_mq.commands.common import encode_append
from strata_mq.layout.batch import BatchBuilder, BatchView, PartKind
from strata_mq.layout.cq_rows import CqRow, encode_cq_row
from strata_seglog.errors import CorruptFrame, LogError, ReadFailed
from strata_seglog.frames import FrameKind, StoredFrame
from strata_storage.tiering.sources import Sources, UnreadableQueueError, message_run
from strata_tier.base.errors import TierError
from strata_tier.objects.plan import PlannedBlock
from tests.unit.storage.pending_entries import TOPIC_ID, message, part_key

INDEX, TIME_MS, COUNT = 7, 1_000, 5


class _Log:
    """One entry, with one batch of one queue."""

    def __init__(self) -> None:
        builder = BatchBuilder(google_crc32c.value)
        builder.add(
            part_key(PartKind.PLAIN), [message(each, keys=(each,)) for each in range(COUNT)]
        )
        batch = builder.build()
        head = encode_append(TIME_MS, 1, 1, ())
        self.view = BatchView(batch, google_crc32c.value)
        self.batch_at = len(head)
        self.payload = head + batch

    def entry(self, replica_id: int, index: int) -> StoredFrame | None:
        if index != INDEX:
            return None
        return StoredFrame(FrameKind.ENTRY, replica_id, 1, 1, index, 0, 0, 0, self.payload)

    def block(self, first: int, columns: bytes, *, index: int = INDEX) -> PlannedBlock:
        """A block with a row's messages from `first` on."""
        message_at = self.batch_at + self.view.message_at(first)
        count = COUNT - first
        row = CqRow(encode_cq_row(message_at, index, TIME_MS, columns, count))
        run = message_run(first, row, first, COUNT)
        return PlannedBlock(TOPIC_ID, 0, first, COUNT, [run], sum(run.lengths))


def test_a_block_is_what_its_entry_has() -> None:
    """Bodies and terms of a part of a batch, proven by the entry's checksum."""
    log = _Log()
    data = Sources(log, 1, 1 << 20).read(log.block(2, log.view.row_columns(2, 3)))
    assert data.bodies == b"message 2message 3message 4"
    assert list(data.terms.key_hashes) == [2, 3, 4]
    assert data.is_proven


@pytest.mark.parametrize("byte", range(0, 24 * 3, 5))
def test_rows_that_say_something_else_are_not_uploaded(byte: int) -> None:
    """A difference in any column of a row is found: nothing else compares each message."""
    log = _Log()
    columns = bytearray(log.view.row_columns(2, 3))
    columns[byte] ^= 1
    with pytest.raises(TierError, match="entry 7"):
        Sources(log, 1, 1 << 20).read(log.block(2, bytes(columns)))


def test_an_entry_that_is_gone_is_said() -> None:
    """It is trimmed or was never there."""
    log = _Log()
    with pytest.raises(TierError, match="entry 8 is not in the log"):
        Sources(log, 1, 1 << 20).read(log.block(0, log.view.row_columns(0, COUNT), index=8))


@pytest.mark.parametrize("error", [ReadFailed("EIO"), CorruptFrame(0, "0.log", "checksum")])
def test_a_queue_that_cannot_be_read_is_named(error: LogError) -> None:
    """The upload goes on without it, so it must be known which one it is."""

    class Unreadable(_Log):
        def entry(self, replica_id: int, index: int) -> StoredFrame | None:
            raise error

    log = Unreadable()
    with pytest.raises(UnreadableQueueError, match=r"topic \d+ queue 0 cannot be read") as found:
        Sources(log, 1, 1 << 20).read(log.block(0, log.view.row_columns(0, COUNT)))
    assert (found.value.topic_id, found.value.queue) == (TOPIC_ID, 0)
