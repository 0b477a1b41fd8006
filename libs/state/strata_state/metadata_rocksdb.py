"""The metadata store in RocksDB with its write-ahead log on (rules 17 and 21).

Every batch goes through the WAL, so it survives the death of the process. The WAL is synced by
`sync` alone: the raft log, synced before anything is applied, is the truth, and changes that a
power failure removes from the end of the WAL are applied again from there. RocksDB recovers to a
batch boundary, so the applied row always matches its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from rocksdict import Options, Rdict, RdictIter, WriteBatch

from strata_state.metadata import DamagedMetadataError, FrozenRows, MetadataStoreError, Row


@dataclass(frozen=True, slots=True)
class MetadataStoreOptions:
    """Limits of the store's memory and files."""

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
        limits = options or MetadataStoreOptions()
        settings = Options(raw_mode=True)
        settings.create_if_missing(True)
        settings.set_write_buffer_size(limits.memtable_bytes)
        settings.set_max_total_wal_size(limits.wal_bytes)
        settings.set_max_open_files(limits.open_files)
        settings.set_keep_log_file_num(limits.kept_info_logs)
        settings.set_paranoid_checks(True)
        self._reading: WeakSet[_Reading] = WeakSet()
        # RocksDB cannot be closed in the middle of a sync, which may hang with its disk.
        self._syncing = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._database = Rdict(str(folder), settings)
        except Exception as error:  # rocksdict has no narrower type
            raise _error(f"{folder}: {error}") from error

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
        batch = WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(key)
        for key, value in puts:
            batch.put(key, value)
        try:
            self._database.write(batch)
        except Exception as error:  # rocksdict has no narrower type
            raise MetadataStoreError(f"metadata rows cannot be written: {error}") from error

    def sync(self) -> None:
        """Make every batch written before durable. Blocks on the disk: not for the event loop."""
        with self._syncing:
            self._flush_wal()

    def _flush_wal(self) -> None:
        try:
            self._database.flush_wal(True)
        except Exception as error:  # rocksdict has no narrower type
            raise MetadataStoreError(f"metadata rows cannot be synced: {error}") from error

    def close(self) -> None:
        """Sync, end what still reads, then close: also where the sync fails.

        A sync that another thread is at ends first.

        Nothing else may be called afterwards.

        Raises:
            MetadataStoreError: the rows written last could not be synced.
        """
        with self._syncing:
            try:
                self._flush_wal()
            finally:
                # An iterator that somebody still holds would keep the folder locked.
                for reading in list(self._reading):
                    reading.close()
                self._database.close()


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
