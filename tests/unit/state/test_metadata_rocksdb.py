"""Metadata rows in RocksDB, where threads meet and where its files cannot be written."""

from __future__ import annotations

import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strata_state.metadata import MetadataStoreError, MetadataSyncFailed
from strata_state.metadata_rocksdb import MetadataStoreOptions, RocksDbMetadataStore

FIRST, END = b"", b"\xff"
ROW = (b"k1", b"1" * 10_000)


class SlowDatabase:
    """Syncs as long as the test wants; notes what was done."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def flush_wal(self, sync: bool) -> None:
        self.begun.set()
        assert self.may_end.wait(30)
        self.calls.append("sync")

    def close(self) -> None:
        self.calls.append("close")


def test_a_close_waits_for_a_sync(tmp_path: Path) -> None:
    """However long the disk takes: RocksDB would refuse, and keep the folder locked."""
    store = RocksDbMetadataStore(tmp_path)
    store._database.close()
    slow: Any = SlowDatabase()
    store._database = slow
    syncing = threading.Thread(target=store.sync)
    syncing.start()
    assert slow.begun.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.2)
    assert slow.calls == []
    slow.may_end.set()
    for each in (syncing, closing):
        each.join(30)
    assert slow.calls == ["sync", "sync", "close"]


@contextmanager
def no_file_may_grow(folder: Path) -> Iterator[None]:
    """Let this process's appends fail in the kernel, half written."""
    longest = max(each.stat().st_size for each in folder.glob("*.log"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (longest + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_store_goes_on_after_a_write_that_failed(tmp_path: Path) -> None:
    """RocksDB itself would refuse every write from then on, however much room there is."""
    store = RocksDbMetadataStore(tmp_path / "meta")
    store.write([ROW])
    held = store.frozen()
    with no_file_may_grow(tmp_path / "meta"):
        with pytest.raises(MetadataStoreError, match="cannot be written"):
            store.write([(b"k2", ROW[1])])
        with pytest.raises(MetadataStoreError, match="a write failed before"):
            store.sync()
        assert list(store.scan(FIRST, END)) == list(held.scan(FIRST, END)) == [ROW]
    store.write([(b"k3", b"3")], [b"missing"])
    store.sync()
    assert list(store.scan(FIRST, END)) == [ROW, (b"k3", b"3")]
    with pytest.raises(MetadataStoreError, match="let go"):
        list(held.scan(FIRST, END))

    # Somebody finds this who has the files and nothing of the process.
    shutil.copytree(tmp_path / "meta", tmp_path / "copy")
    copy = RocksDbMetadataStore(tmp_path / "copy")
    assert list(copy.scan(FIRST, END)) == [ROW, (b"k3", b"3")]
    copy.close()
    store.close()


def test_a_write_that_fails_beside_a_sync_is_no_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync has begun and was not tried; neither it nor the close ends the process."""
    store = RocksDbMetadataStore(tmp_path)
    store.write([ROW])
    store.sync()
    flush_wal = store._flush_wal

    def after_a_write() -> None:
        with no_file_may_grow(tmp_path), pytest.raises(MetadataStoreError, match="be written"):
            store.write([(b"k2", ROW[1])])
        flush_wal()

    monkeypatch.setattr(store, "_flush_wal", after_a_write)
    with pytest.raises(MetadataStoreError, match="previous error") as raised:
        store.sync()
    assert not isinstance(raised.value, MetadataSyncFailed)
    store.close()
    again = RocksDbMetadataStore(tmp_path)
    assert list(again.scan(FIRST, END)) == [ROW]
    again.close()


def test_files_are_opened_anew_only_where_there_is_room(tmp_path: Path) -> None:
    """Opening them needs room; without it the rows would be gone until there is some."""
    too_much = MetadataStoreOptions(wal_bytes=1 << 60)
    store = RocksDbMetadataStore(tmp_path / "meta", too_much)
    store.write([ROW])
    with no_file_may_grow(tmp_path / "meta"), pytest.raises(MetadataStoreError):
        store.write([(b"k2", ROW[1])])
    for _ in range(2):
        with pytest.raises(MetadataStoreError, match="are needed"):
            store.write([(b"k2", b"2")])
    assert list(store.scan(FIRST, END)) == [ROW]


def test_files_are_not_opened_anew_under_a_sync(tmp_path: Path) -> None:
    """It would wait on the event loop for a disk that may hang."""
    store = RocksDbMetadataStore(tmp_path / "meta")
    store.write([ROW])
    with no_file_may_grow(tmp_path / "meta"), pytest.raises(MetadataStoreError):
        store.write([(b"k2", ROW[1])])
    with store._syncing, pytest.raises(MetadataStoreError, match="a sync is under way"):
        store.write([(b"k2", b"2")])
    store.write([(b"k2", b"2")])
    assert list(store.scan(FIRST, END)) == [ROW, (b"k2", b"2")]
    store.close()
