"""The contract of `strata_state.ports.StateStore`, over every adapter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_state.memory_store import MemoryStore
from strata_state.ports import DamagedRowsError, Row, StateError, StateStore
from strata_state.rocksdb_store import RocksdbOptions, RocksdbStore


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    opened: StateStore = (
        MemoryStore() if request.param == "memory" else RocksdbStore(tmp_path / "s")
    )
    yield opened
    opened.close()


def put(store: StateStore, *rows: tuple[bytes, bytes]) -> None:
    batch = store.new_batch()
    for key, value in rows:
        batch.put(key, value)
    store.write(batch)


def test_a_written_row_is_read_and_a_missing_one_is_none(store: StateStore) -> None:
    """The rows of a batch are there after write, nothing else."""
    put(store, (b"a", b"1"), (b"empty", b""))
    assert (store.get(b"a"), store.get(b"empty"), store.get(b"b")) == (b"1", b"", None)


def test_changes_of_a_batch_hold_in_their_order(store: StateStore) -> None:
    """A put behind a delete of the same range stands; one before it does not."""
    put(store, (b"a1", b"old"), (b"b", b"kept"))
    batch = store.new_batch()
    batch.put(b"a2", b"gone")
    batch.delete_range(b"a", b"b")
    batch.put(b"a3", b"new")
    batch.put(b"c", b"gone")
    batch.delete(b"c")
    batch.delete(b"never there")
    store.write(batch)
    assert list(store.scan(b"", b"\xff")) == [(b"a3", b"new"), (b"b", b"kept")]


def test_a_scan_is_in_key_order_and_as_of_its_call(store: StateStore) -> None:
    """Rows written after `scan` was called do not show, even if it is driven later."""
    put(store, (b"b", b"2"), (b"a", b"1"), (b"d", b"4"))
    scan = store.scan(b"a", b"d")
    batch = store.new_batch()
    batch.put(b"c", b"3")
    batch.delete(b"b")
    store.write(batch)
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]


def test_a_scan_may_be_driven_by_another_thread(store: StateStore) -> None:
    """A checkpoint is read in a thread while the event loop writes."""
    put(store, (b"a", b"1"), (b"b", b"2"))
    scan = store.scan(b"", b"\xff")
    found: list[Row] = []
    thread = threading.Thread(target=lambda: found.extend(scan))
    thread.start()
    thread.join()
    assert found == [(b"a", b"1"), (b"b", b"2")]


def test_a_cursor_shows_rows_as_of_its_making_also_after_it_was_moved_back(
    store: StateStore,
) -> None:
    """Later writes do not show; a seek may go anywhere in the range."""
    for key in (b"a", b"b", b"c", b"d", b"z"):
        put(store, (key, b"old"))
    cursor = store.cursor(b"b", b"e")
    put(store, (b"bb", b"new"), (b"c", b"new"))
    assert [key for key, _ in cursor.seek(b"c")] == [b"c", b"d"]
    store.flush()
    assert list(cursor.seek(b"")) == [(b"b", b"old"), (b"c", b"old"), (b"d", b"old")]
    assert list(cursor.seek(b"dd")) == []


def test_a_reverse_seek_finds_the_last_row_at_or_before_a_key(store: StateStore) -> None:
    """`last_before` keeps to its lower bound."""
    put(store, (b"q1-10", b"x"), (b"q1-20", b"y"), (b"q2-05", b"z"))
    assert store.last_before(b"q1-", b"q1-15") == (b"q1-10", b"x")
    assert store.last_before(b"q1-", b"q1-20") == (b"q1-20", b"y")
    assert store.last_before(b"q1-", b"q1-09") is None
    assert store.last_before(b"q2-", b"q2-04") is None


@given(
    changes=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.binary(min_size=1, max_size=2), st.binary(max_size=2)),
            st.tuples(st.just("delete"), st.binary(min_size=1, max_size=2), st.just(b"")),
            st.tuples(st.just("range"), st.binary(min_size=1, max_size=2), st.binary(min_size=1)),
        ),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_both_adapters_agree(
    changes: list[tuple[str, bytes, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same batches leave the same rows in memory and in RocksDB."""
    stores: list[StateStore] = [MemoryStore(), RocksdbStore(tmp_path_factory.mktemp("s") / "db")]
    for store in stores:
        batch = store.new_batch()
        for kind, key, value in changes:
            if kind == "put":
                batch.put(key, value)
            elif kind == "delete":
                batch.delete(key)
            elif key < value:
                batch.delete_range(key, value)
        store.write(batch)
    memory, rocksdb = stores
    assert list(memory.scan(b"", b"\xff" * 9)) == list(rocksdb.scan(b"", b"\xff" * 9))
    assert memory.last_before(b"", b"\x80") == rocksdb.last_before(b"", b"\x80")
    rocksdb.close()


def test_rows_are_there_after_close_and_open(tmp_path: Path) -> None:
    """`close` flushes, although there is no write-ahead log."""
    first = RocksdbStore(tmp_path / "s")
    put(first, (b"a", b"1"))
    first.close()
    second = RocksdbStore(tmp_path / "s")
    assert second.get(b"a") == b"1"
    second.close()


def test_a_closed_store_holds_no_memory(tmp_path: Path) -> None:
    """The last push of metrics of a process that ends may ask after the close."""
    store = RocksdbStore(tmp_path)
    put(store, (b"a", b"1"))
    assert store.memory_bytes() > 0
    store.close()
    assert store.memory_bytes() == 0


def test_a_closed_folder_opens_again_whoever_was_still_reading(tmp_path: Path) -> None:
    """A scan and a cursor that were left in the middle hold neither files nor the lock."""
    store = RocksdbStore(tmp_path / "s")
    put(store, (b"a", b"1"), (b"b", b"2"))
    unbegun, scan = store.scan(b"", b"c"), store.scan(b"", b"c")
    cursor = store.cursor(b"", b"c")
    moved = cursor.seek(b"a")
    assert next(scan) == next(moved) == (b"a", b"1")
    store.close()
    again = RocksdbStore(tmp_path / "s")
    assert again.get(b"b") == b"2"
    assert [*unbegun, *scan, *moved] == []
    with pytest.raises(StateError, match="closed"):
        cursor.seek(b"a")
    again.close()


def test_a_crash_of_the_memory_store_loses_what_was_not_flushed() -> None:
    """The memory store goes back to its last flush, as RocksDB without log does."""
    store = MemoryStore()
    put(store, (b"a", b"1"))
    store.flush()
    put(store, (b"a", b"2"), (b"b", b"2"))
    left = store.after_crash()
    assert list(left.scan(b"", b"\xff")) == [(b"a", b"1")]
    assert store.get(b"b") == b"2"


def test_a_folder_that_is_open_elsewhere_is_refused_with_one_clear_error(tmp_path: Path) -> None:
    """A second process, or a damaged folder, gives StateError."""
    first = RocksdbStore(tmp_path / "s")
    with pytest.raises(StateError, match="cannot be opened"):
        RocksdbStore(tmp_path / "s")
    first.close()


def test_damaged_files_are_found_and_not_served(tmp_path: Path) -> None:
    """A flipped byte in a table file is damage, told from a read that failed; never other bytes."""
    first = RocksdbStore(tmp_path / "s")
    put(first, *((b"%06d" % number, b"v" * 100) for number in range(2_000)))
    first.close()
    (table,) = (tmp_path / "s").glob("*.sst")
    data = bytearray(table.read_bytes())
    for at in range(100, len(data) // 2, 1_000):
        data[at] ^= 0xFF
    table.write_bytes(bytes(data))
    second = RocksdbStore(tmp_path / "s")
    with pytest.raises(DamagedRowsError, match="checksum mismatch"):
        list(second.scan(b"", b"\xff"))
    with pytest.raises(DamagedRowsError, match="checksum mismatch"):
        second.get(b"%06d" % 1)
    second.close()


def test_a_read_fetches_little_however_large_the_file(tmp_path: Path) -> None:
    """The filter of a file with many rows does not fit into the cache in one piece."""
    store = RocksdbStore(tmp_path, RocksdbOptions(block_cache_bytes=8 * 1024 * 1024))
    rows, reads = 500_000, 500
    for first in range(0, rows, 10_000):
        put(store, *((b"row-%08d" % number, b"") for number in range(first, first + 10_000)))
    store.flush()
    before = read_bytes()
    for number in range(reads):
        assert store.get(b"row-%08d-missing" % (number * 1_000)) is None
        assert store.get(b"row-%08d" % (number * 1_000)) == b""
    # A filter has 10 bits per row; each read fetched all of it.
    assert read_bytes() - before < 50 * rows * 10 / 8
    store.close()


def read_bytes() -> int:
    """Return what this process has read from files and elsewhere."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar:")).split()[1])
