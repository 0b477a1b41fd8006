"""A row store on a disk that somebody else fills, for real, and empties again.

The store has a mount namespace with a small tmpfs under its folder; it goes with the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from strata_state.ports import StateError
from strata_state.rocksdb_store import RocksdbStore
from tests.integration.cli.test_full_disk import fill, require_own_disk

# RocksDB wants as much room as its memtables may take before it goes on.
MOUNT = 'mount -t tmpfs -o size=300m tmpfs "$0" && exec "$@"'
TRY_AGAIN_S = 0.1
TRIES = 600


def put(store: RocksdbStore, key: bytes) -> None:
    """Write a row."""
    batch = store.new_batch()
    batch.put(key, key * 10_000)
    store.write(batch)


def fill_and_empty(folder: Path) -> None:
    """Runs in a process of its own; prints the keys that are there in the end."""
    store = RocksdbStore(folder / "state")
    put(store, b"before")
    fill(folder / "filler")
    refused = 0
    try:
        store.flush()
    except StateError as error:
        assert "No space left" in str(error), error
        refused += 1
    (folder / "filler").unlink()
    for _ in range(TRIES):
        try:
            store.flush()
            put(store, b"later")
            break
        except StateError:
            refused += 1
            time.sleep(TRY_AGAIN_S)
    store.close()
    store = RocksdbStore(folder / "state")
    print(json.dumps([refused > 0, [key.decode() for key, _ in store.scan(b"", b"\xff")]]))


def test_rows_are_flushed_once_there_is_room(tmp_path: Path) -> None:
    """However often that is tried: each try would hold RocksDB up that waits for room itself."""
    require_own_disk()
    command = ["unshare", "--mount", "sh", "-c", MOUNT, str(tmp_path)]
    command += [sys.executable, "-m", __name__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, ["before", "later"]]


if __name__ == "__main__":
    fill_and_empty(Path(sys.argv[1]))
