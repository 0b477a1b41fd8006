"""The metadata store in RocksDB with its write-ahead log on (rules 17 and 21).

Every batch goes through the WAL, so it survives the death of the process. The WAL is synced by
`sync` alone: the raft log, synced before anything is applied, is the truth, and changes that a
power failure removes from the end of the WAL are applied again from there. RocksDB recovers to a
batch boundary, so the applied row always matches its rows.

Once an append to the WAL failed, for want of room for instance, RocksDB refuses every later write
until its files are opened anew (measured with rocksdict 0.3.29); the next write does that. Opening
brings back every batch that was written, and makes it durable.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from rocksdict import Options, Rdict, RdictIter, WriteBatch

from strata_state.metadata import (
    DamagedMetadataError,
    FrozenRows,
    MetadataStoreError,
    MetadataSyncFailed,
    Row,
)

# RocksDB's refusal to append to its WAL, or to sync it, once an append failed.
_WRITE_FAILED = "Writer has previous error"


@dataclass(frozen=True, slots=True)
class MetadataStoreOptions:
    """Limits of the store's memory and files.

    Attributes:
        memtable_bytes: a memtable of this size is flushed to a file.
        wal_bytes: memtables are flushed, too, when the WAL is as long as this. After a write that
            failed, files are opened anew only where as much room is free as both may take.
        open_files: file handles that RocksDB keeps.
        kept_info_logs: log files of RocksDB itself.
    """

    memtable_bytes: int = 8 * 1024 * 1024
    wal_bytes: int = 32 * 1024 * 1024
    open_files: int = 256
    kept_info_logs: int = 2


class RocksDbMetadataStore:
    """Rows in one column family of one RocksDB."""

    def __init__(self, folder: Path, options: MetadataStoreOptions | None = None) -> None:
        """Open or create the database in `folder`.

        Raises:
            DamagedMetadataError: the files are damaged.
            MetadataStoreError: they are opened by another process, or cannot be used.
        """
        self._folder = folder
        self._options = options or MetadataStoreOptions()
        self._reading: WeakSet[_Reading] = WeakSet()
        # RocksDB cannot be closed in the middle of a sync, which may hang with its disk.
        self._syncing = threading.Lock()
        # A write failed: RocksDB takes no other before the files are opened anew.
        self._write_failed = False
        folder.mkdir(parents=True, exist_ok=True)
        self._database = self._open()

    def _open(self) -> Rdict:
        limits = self._options
        settings = Options(raw_mode=True)
        settings.create_if_missing(True)
        settings.set_write_buffer_size(limits.memtable_bytes)
        settings.set_max_total_wal_size(limits.wal_bytes)
        settings.set_max_open_files(limits.open_files)
        settings.set_keep_log_file_num(limits.kept_info_logs)
        settings.set_paranoid_checks(True)
        try:
            return Rdict(str(self._folder), settings)
        except Exception as error:  # rocksdict has no narrower type
            raise _error(f"{self._folder}: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row; None: there is no such row."""
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:  # rocksdict has no narrower type
            raise _unreadable(error) from error
        return value

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order, as they stand at the call."""
        return self._read().scan(first, end)

    def frozen(self) -> FrozenRows:
        """Return all rows as they stand at the call."""
        return self._read()

    def _read(self) -> _Reading:
        reading = _Reading(self._database.iter())
        self._reading.add(reading)
        return reading

    def write(self, puts: Sequence[Row], deletes: Sequence[bytes] = ()) -> None:
        """Write and delete rows in one atomic batch, through the WAL."""
        if self._write_failed:
            self._reopen()
        batch = WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(key)
        for key, value in puts:
            batch.put(key, value)
        try:
            self._database.write(batch)
        except Exception as error:  # rocksdict has no narrower type
            self._write_failed = True
            raise MetadataStoreError(f"metadata rows cannot be written: {error}") from error

    def sync(self) -> None:
        """Make every batch written before durable. Blocks on the disk: not for the event loop."""
        with self._syncing:
            if self._write_failed:
                raise MetadataStoreError("metadata rows cannot be synced: a write failed before")
            self._flush_wal()

    def _flush_wal(self) -> None:
        try:
            self._database.flush_wal(True)
        except Exception as error:  # rocksdict has no narrower type
            if _WRITE_FAILED in str(error):
                # A write failed while this began, and no sync was tried.
                raise MetadataStoreError(f"metadata rows cannot be synced: {error}") from error
            raise MetadataSyncFailed(f"metadata rows cannot be synced: {error}") from error

    def _reopen(self) -> None:
        """Open the files anew; whoever reads meanwhile is told that the rows were let go.

        Raises:
            MetadataStoreError: there is no room to do that, or a sync is under way; try later.
        """
        needed = self._options.wal_bytes + self._options.memtable_bytes
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise MetadataStoreError(
                f"metadata rows cannot be written: {free} bytes of the disk are free, "
                f"{needed} are needed"
            )
        if not self._syncing.acquire(blocking=False):
            raise MetadataStoreError("metadata rows cannot be written: a sync is under way")
        try:
            self._let_go()
            self._database = self._open()
            self._write_failed = False
        finally:
            self._syncing.release()

    def _let_go(self) -> None:
        # An iterator that somebody still holds would keep the folder locked.
        for reading in list(self._reading):
            reading.close()
        # It closes in any case, and raises where a memtable could not be flushed: the WAL has it.
        with suppress(Exception):
            self._database.close()

    def close(self) -> None:
        """Sync, end what still reads, then close: also where the sync fails.

        A sync that another thread is at ends first.

        Nothing else may be called afterwards.

        Raises:
            MetadataSyncFailed: the rows written last could not be synced.
        """
        with self._syncing:
            try:
                # After a failed write nothing can be synced; what had to be, was before.
                if not self._write_failed:
                    self._flush_wal()
            finally:
                self._let_go()


class _Reading:
    """An iterator, which shows the rows as they were when it was made; it holds back compaction.

    RocksDB's own snapshot object is of no use here: rocksdict 0.3.29 iterates over the newest
    rows all the same.
    """

    __slots__ = ("__weakref__", "_iterator")

    def __init__(self, iterator: RdictIter) -> None:
        self._iterator: RdictIter | None = iterator

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order; one scan at a time.

        Raises:
            MetadataStoreError: the rows were let go, the store was closed, or files are damaged.
        """
        self._there().seek(first)
        # No frame may hold the iterator while the reader has a row: it is there for the asking.
        while self._there().valid() and (key := self._there().key()) < end:
            yield key, self._there().value()
            self._there().next()
        # Damaged bytes make an iterator invalid, as the end of the rows does.
        try:
            self._there().status()
        except Exception as error:  # rocksdict has no narrower type
            raise _unreadable(error) from error

    def close(self) -> None:
        """Let go of the rows."""
        self._iterator = None

    def _there(self) -> RdictIter:
        if self._iterator is None:
            raise MetadataStoreError("metadata rows cannot be read: they were let go")
        return self._iterator


def _unreadable(error: Exception) -> MetadataStoreError:
    return _error(f"metadata rows cannot be read: {error}")


def _error(text: str) -> MetadataStoreError:
    # RocksDB names the kind of a failure in its text, and rocksdict gives nothing else.
    return DamagedMetadataError(text) if "Corruption:" in text else MetadataStoreError(text)
