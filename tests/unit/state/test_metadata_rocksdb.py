"""Metadata rows in RocksDB, where threads meet."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from strata_state.metadata_rocksdb import RocksDbMetadataStore


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
