"""The row store in RocksDB, through rocksdict in raw mode.

Traps that shaped it, all measured with rocksdict 0.3.29:
- One column family. With several families and no write-ahead log, flushing one left the applied
  row ahead of the rows it covers; closing the default handle while a family's handle lived lost
  everything (rule 5).
- `flush(wait=True)` releases the GIL: another thread ran without a gap while 1,000,000 rows were
  flushed in 0.3 s. `write` does not release it, so apply keeps its batches small.
- `close` does not flush rows without write-ahead log: the store flushes first.
- An iterator's upper bound is memory of its `ReadOptions`: when that object was freed first, scans
  ended early or late. The generator holds both.
- Every iterator pins the files it reads, and the folder's lock: `close` ends those that were left
  in the middle of a range.
- After a flush that found no room RocksDB refuses writes, looks every 5 s whether there is room,
  and goes on by itself. Flushes that were tried every second meanwhile kept it from that for good.
- Iterators of `Rdict.snapshot()` show rows written after it. An iterator of the database itself is
  consistent, also after a `seek`; a cursor is such an iterator.

Invariant: RocksDB may flush a full memtable by itself. That is harmless here, because memtables of
one family are flushed in the order they were filled and a batch is in one of them, so the durable
state is always a prefix of the batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)
from rocksdict import WriteOptions as RocksWriteOptions

from strata_state.ports import DamagedRowsError, Row, RowBatch, StateError

_METADATA_BLOCK_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class RocksdbOptions:
    """Memory and file limits of one store.

    Attributes:
        memtable_bytes: a memtable of this size is flushed by RocksDB, whatever the flush policy.
        memtable_count: memtables in memory, the active one included; more stall writers.
        block_cache_bytes: cache of blocks read from files.
        max_open_files: file handles RocksDB keeps.
    """

    memtable_bytes: int = 64 * 1024 * 1024
    memtable_count: int = 3
    block_cache_bytes: int = 32 * 1024 * 1024
    max_open_files: int = 512


class SharedBlockCache:
    """One cache of blocks for several stores of a process; the least used blocks leave it.

    Args:
        size_bytes: of all blocks together.
    """

    def __init__(self, size_bytes: int) -> None:
        self.cache = Cache(size_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks in it."""
        used: int = self.cache.get_usage()
        return used


class RocksdbCursor:
    """`RowCursor` over one iterator."""

    def __init__(self, database: Rdict, begin: bytes, end: bytes) -> None:
        self._read_options = ReadOptions()
        self._read_options.set_iterate_upper_bound(end)
        self._iterator: Any = database.iter(self._read_options)
        self._rows: Generator[Row] | None = None
        self._begin = begin

    def seek(self, key: bytes) -> Iterator[Row]:
        """Iterate from `key` on.

        Raises:
            StateError: the store is closed.
        """
        if self._iterator is None:
            raise StateError("state rows cannot be read: the store is closed")
        self._iterator.seek(max(key, self._begin))
        self._rows = _rows(self._iterator, self._read_options)
        return self._rows

    def close(self) -> None:
        """Free the iterator."""
        if self._rows is not None:
            self._rows.close()
        self._iterator = None


class RocksdbStore:
    """`StateStore` in one RocksDB column family without write-ahead log.

    Args:
        folder: of its files.
        options: limits of its memory and files.
        shared_cache: in place of a block cache of its own; None: it has one.

    Raises:
        StateError: the folder holds no readable RocksDB, or another process has it open.
    """

    def __init__(
        self,
        folder: Path,
        options: RocksdbOptions | None = None,
        shared_cache: SharedBlockCache | None = None,
    ) -> None:
        self._reading: WeakSet[Generator[Row] | RocksdbCursor] = WeakSet()
        self._closed = False
        self._no_wal = RocksWriteOptions()
        # A property at run time, whatever the stub says.
        setattr(self._no_wal, "disable_wal", True)  # noqa: B010
        try:
            rocks = _rocks_options(options or RocksdbOptions(), shared_cache)
            self._db = Rdict(str(folder), rocks)
        except Exception as error:
            raise StateError(f"state folder {folder.name} cannot be opened: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        """Return a row's value.

        Raises:
            DamagedRowsError: its bytes are damaged.
            StateError: it cannot be read now.
        """
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise _read_failure(f"state row cannot be read: {error}") from error
        return value

    def new_batch(self) -> RowBatch:
        """Return an empty batch, RocksDB's own object: one call per row is the whole cost."""
        batch: RowBatch = WriteBatch(raw_mode=True)
        return batch

    def write(self, batch: RowBatch) -> None:
        """Apply a batch to the memtable."""
        try:
            self._db.write(cast(WriteBatch, batch), self._no_wal)
        except Exception as error:
            raise StateError(f"state rows cannot be written: {error}") from error

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Iterate a range as it is now; RocksDB's iterator is a snapshot."""
        read_options = ReadOptions()
        read_options.set_iterate_upper_bound(end)
        iterator = self._db.iter(read_options)
        iterator.seek(begin)
        rows = _rows(iterator, read_options)
        self._reading.add(rows)
        return rows

    def cursor(self, begin: bytes, end: bytes) -> RocksdbCursor:
        """Return a cursor over a range as it is now."""
        cursor = RocksdbCursor(self._db, begin, end)
        self._reading.add(cursor)
        return cursor

    def last_before(self, lower: bytes, key: bytes) -> Row | None:
        """Return the last row with lower <= its key <= key."""
        iterator = self._db.iter()
        iterator.seek_for_prev(key)
        if not iterator.valid():
            _check(iterator)
            return None
        found: bytes = iterator.key()
        return (found, iterator.value()) if found >= lower else None

    def flush(self) -> None:
        """Flush the memtables to synced files and wait for it."""
        try:
            # Refused while RocksDB stands still after a flush that failed, where another flush
            # would keep it from going on.
            self._db.write(WriteBatch(raw_mode=True), self._no_wal)
            self._db.flush(wait=True)
        except Exception as error:
            raise StateError(f"state cannot be flushed: {error}") from error

    def memory_bytes(self) -> int:
        """Return the size of all memtables; 0 for a closed store, which a late scrape may ask."""
        if self._closed:
            return 0
        return int(self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    def close(self) -> None:
        """Flush, end what still reads, then close: also where the flush fails.

        Raises:
            StateError: the rows could not be flushed; the log has them (rule 4).
        """
        try:
            self.flush()
        finally:
            for reading in list(self._reading):
                # One that another thread is reading at this moment ends with that thread.
                with suppress(ValueError):
                    reading.close()
            self._closed = True
            self._db.close()


def _rows(iterator: Any, read_options: ReadOptions) -> Generator[Row]:
    # RocksDB reads the upper bound from memory that `read_options` owns: it must live as long.
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    _check(iterator)
    del read_options


def _check(iterator: Any) -> None:
    """Tell the end of a range from damaged bytes: both make an iterator invalid."""
    try:
        iterator.status()
    except Exception as error:
        raise _read_failure(f"state rows cannot be read: {error}") from error


def _read_failure(text: str) -> StateError:
    """Tell damaged bytes from a read that may succeed later (rule 40)."""
    return DamagedRowsError(text) if "Corruption:" in text else StateError(text)


def _rocks_options(options: RocksdbOptions, shared: SharedBlockCache | None) -> Options:
    rocks = Options(raw_mode=True)
    rocks.create_if_missing(True)
    rocks.set_write_buffer_size(options.memtable_bytes)
    rocks.set_max_write_buffer_number(options.memtable_count)
    rocks.set_max_open_files(options.max_open_files)
    rocks.set_max_background_jobs(2)
    # One thread writes: inserting without locks for others took a third less time.
    rocks.set_allow_concurrent_memtable_write(False)
    rocks.set_paranoid_checks(True)
    rocks.set_keep_log_file_num(4)
    rocks.set_max_log_file_size(1024 * 1024)
    table = BlockBasedOptions()
    table.set_block_cache(shared.cache if shared is not None else Cache(options.block_cache_bytes))
    table.set_bloom_filter(10, False)
    # In parts of their own: the filter of a large file in one block fits into no shard of the cache
    # (a 64th of it), so every read of a row fetched all of it again (150 us and more, not 3).
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    rocks.set_block_based_table_factory(table)
    return rocks
