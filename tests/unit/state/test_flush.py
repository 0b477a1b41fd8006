"""When state is flushed and what is persisted then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_state.flush import Flusher, FlushOptions, FlushPolicy
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError


def test_a_flush_is_due_by_log_or_by_age_and_never_without_news() -> None:
    """Rule 5: 512 MiB of unflushed log or 60 s after the first row, whichever comes first."""
    policy = FlushPolicy(FlushOptions(max_unflushed_log_bytes=100, max_age_s=60), 1_000)
    assert not policy.due(1_000, 0.0)
    assert not policy.due(1_050, 10.0)
    assert not policy.due(1_050, 69.9)
    assert policy.due(1_050, 70.0)
    assert policy.due(1_100, 11.0)
    policy.flushed(1_100)
    assert not policy.due(1_100, 500.0)
    assert not policy.due(1_101, 501.0)
    assert policy.unflushed_bytes(1_101) == 1


def test_rows_of_a_replayed_log_are_flushed_by_age_though_the_log_does_not_grow() -> None:
    """A crash in the middle of a long replay does not begin it again from the start."""
    policy = FlushPolicy(FlushOptions(max_unflushed_log_bytes=100, max_age_s=60), 1_000)
    assert not policy.due(1_000, 0.0, has_rows=True)
    assert policy.due(1_000, 60.0, has_rows=True)
    policy.flushed(1_000)
    assert not policy.due(1_000, 500.0)


async def test_persisted_index_moves_only_after_a_completed_flush() -> None:
    """Entries applied while the flush ran are not called persisted; a failed one moves nothing."""
    store = MemoryStore()
    applied = {1: 10}

    async def run(work: Callable[[], None]) -> None:
        applied[1] = 20
        work()

    flusher = Flusher(store, run)
    flusher.opened(1, 5)
    assert flusher.persisted_index(1) == 5
    await flusher.flush(applied)
    assert flusher.persisted_index(1) == 10

    async def fail(work: Callable[[], None]) -> None:
        raise StateError("the disk is gone")

    broken = Flusher(store, fail)
    with pytest.raises(StateError):
        await broken.flush(applied)
    assert broken.persisted_index(1) == 0


async def test_a_flush_says_nothing_of_rows_that_a_snapshot_put_there_meanwhile() -> None:
    """Rows that were given up while the flush ran are not persisted under their old index."""

    async def run(work: Callable[[], None]) -> None:
        flusher.opened(1, 0)
        work()

    flusher = Flusher(MemoryStore(), run)
    flusher.opened(1, 5)
    flusher.opened(2, 5)
    await flusher.flush({1: 10, 2: 10})
    assert (flusher.persisted_index(1), flusher.persisted_index(2)) == (0, 10)
