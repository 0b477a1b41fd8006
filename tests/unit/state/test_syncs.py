"""Rows that stores are told to make durable are on the disk, not in this process's memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from strata_state.metadata import MetadataStoreError, MetadataSyncFailed
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_state.ports import StateError
from strata_state.rocksdb_store import RocksdbStore


def rows_in_files(folder: Path) -> list[tuple[bytes, bytes]]:
    """Return what somebody finds who has the files and nothing of the process."""
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)
    store = RocksdbStore(copy)
    rows = list(store.scan(b"", b"\xff"))
    store.close()
    shutil.rmtree(copy)
    return rows


def test_flushed_rows_are_in_the_files(tmp_path: Path) -> None:
    """State has no write-ahead log: before a flush nothing of it survives, after it all does."""
    store = RocksdbStore(tmp_path / "state")
    batch = store.new_batch()
    batch.put(b"k", b"v")
    store.write(batch)
    assert rows_in_files(tmp_path / "state") == []
    store.flush()
    assert rows_in_files(tmp_path / "state") == [(b"k", b"v")]
    store.close()


class Recorded:
    """A database whose calls are noted."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._database, name)

        def call(*values: object, **named: object) -> Any:
            self.calls.append(f"{name}{[*values, *named.values()]}")
            return real(*values, **named)

        return call


def test_closing_flushes_first(tmp_path: Path) -> None:
    """The store flushes, whatever RocksDB does by itself when it is closed."""
    store = RocksdbStore(tmp_path / "state")
    database = Recorded(store._db)
    store._db = database  # type: ignore[assignment]
    store.close()
    assert database.calls[-2:] == ["flush[True]", "close[]"]


def test_a_metadata_sync_asks_the_database_to_sync(tmp_path: Path) -> None:
    """Nothing here can cut the power: the write-ahead log is synced at `sync` and at `close`."""
    store = RocksDbMetadataStore(tmp_path / "meta")
    database = Recorded(store._database)
    store._database = database  # type: ignore[assignment]
    store.sync()
    assert database.calls == ["flush_wal[True]"]
    store.close()
    assert database.calls == ["flush_wal[True]", "flush_wal[True]", "close[]"]


def failing(database: Any, name: str) -> Any:
    """Return the database with one method that fails, as all writes do on a full disk."""

    class Full(Recorded):
        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                raise OSError("No space left on device")
            return super().__getattr__(asked)

    return Full(database)


def test_rows_that_cannot_be_flushed_leave_the_folder_free(tmp_path: Path) -> None:
    """A store closed on a full disk says so, and its folder can be opened again."""
    store = RocksdbStore(tmp_path / "state")
    rows = store.scan(b"", b"\xff")
    store._db = failing(store._db, "flush")
    with pytest.raises(StateError, match="No space left"):
        store.close()
    RocksdbStore(tmp_path / "state").close()
    del rows


def test_metadata_that_cannot_be_synced_leaves_the_folder_free(tmp_path: Path) -> None:
    """So does the store of the metadata, also while somebody holds rows of it."""
    store = RocksDbMetadataStore(tmp_path / "meta")
    store.write([(b"a", b"1"), (b"b", b"2")])
    held, begun = store.frozen(), store.scan(b"a", b"z")
    assert next(begun) == (b"a", b"1")
    store._database = failing(store._database, "flush_wal")
    with pytest.raises(MetadataSyncFailed, match="No space left"):
        store.sync()
    with pytest.raises(MetadataSyncFailed, match="No space left"):
        store.close()
    RocksDbMetadataStore(tmp_path / "meta").close()
    with pytest.raises(MetadataStoreError, match="let go"):
        next(begun)
    held.close()
