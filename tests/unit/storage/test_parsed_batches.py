"""Batches that are kept parsed until they are applied."""

from __future__ import annotations

import asyncio

import google_crc32c
import pytest

from strata_mq.layout.batch import BatchBuilder, BatchView, OutgoingMessage, PartKey
from strata_storage.rows.parsed import ParsedBatches


def batch(body: bytes) -> BatchView:
    """Return a parsed batch of one message."""
    builder = BatchBuilder(google_crc32c.value)
    crc = google_crc32c.value(body)
    builder.add(
        PartKey(7, 0, 0, 4), [OutgoingMessage(body, crc, 0, 0, b"\x01" + bytes(16), 1, 1, ())]
    )
    return BatchView(builder.build(), google_crc32c.value)


@pytest.fixture
async def parsed() -> ParsedBatches:
    return ParsedBatches(10_000)


def propose(parsed: ParsedBatches, view: BatchView, index: int | None) -> asyncio.Future[int]:
    """Have a batch proposed, and committed as an entry."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    parsed.add(future, view)
    if index is not None:
        future.set_result(index)
    return future


async def test_it_is_found_by_its_entry_also_when_that_was_read_back(parsed: ParsedBatches) -> None:
    """Other bytes with the same content, as the log gives them."""
    first, second = batch(b"a"), batch(b"b")
    propose(parsed, first, 3)
    propose(parsed, second, 4)
    assert parsed.take(3, first.data) is first
    assert parsed.take(4, bytes(bytearray(second.data))) is second
    assert (len(parsed), parsed.size_bytes) == (0, 0)


async def test_what_was_applied_without_it_goes(parsed: ParsedBatches) -> None:
    """Nothing stays of entries that are behind the applied one."""
    views = [batch(b"%d" % number) for number in range(5)]
    for index, view in enumerate(views, 1):
        propose(parsed, view, index)
    assert parsed.take(4, views[3].data) is views[3]
    assert len(parsed) == 1
    assert parsed.take(5, b"something else") is None
    assert (len(parsed), parsed.size_bytes) == (0, 0)


async def test_what_is_not_committed_is_for_no_entry(parsed: ParsedBatches) -> None:
    """Nor is what failed; it goes when the leader ends."""
    view = batch(b"a")
    future = propose(parsed, view, None)
    assert parsed.take(7, view.data) is None
    future.set_exception(ValueError("leadership was lost"))
    assert parsed.take(7, view.data) is None
    parsed.clear()
    assert (len(parsed), parsed.size_bytes) == (0, 0)


async def test_it_keeps_to_its_bytes_and_goes_on_when_there_is_room(parsed: ParsedBatches) -> None:
    """A thousand batches that wait for apply take no more than the limit."""
    views = [batch(b"x" * 1_000) for _ in range(50)]
    for index, view in enumerate(views, 1):
        propose(parsed, view, index)
        assert parsed.size_bytes <= 10_000
    kept = len(parsed)
    assert 0 < kept < 50
    assert parsed.take(50, views[-1].data) is None
    assert len(parsed) == 0
    propose(parsed, views[0], 51)
    assert parsed.take(51, views[0].data) is views[0]
