"""A node's knowledge of its stores: marks that outlive it, and objects that its rows name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError
from strata_storage.tiering.known_stores import FILE, KnownStores
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.state import ObjectRef, TieredObject
from strata_tier.ranges.metadata_rows import RowTierMetadata

STORE, OTHER = "posix:///mnt/tier", "posix:///mnt/other"


def put_objects(
    rows: MemoryStore, raft_group: int, space: str, count: int = 1, *, dropped_at_ms: int = 0
) -> list[str]:
    """Write rows of objects; return their keys."""
    batch, keys = rows.new_batch(), []
    metadata = RowTierMetadata(rows, raft_group)
    for _ in range(count):
        object_id = len(list(metadata.objects())) + 1
        key = f"home/sets/{raft_group:08x}/{object_id:016x}.set"
        ref = ObjectRef(object_id, ObjectKind.STREAM_SET, key, space, 10, 1, raft_group)
        metadata.put_object(batch, TieredObject(ref, 1, 10, 5, dropped_at_ms))
        rows.write(batch)
        batch = rows.new_batch()
        keys.append(key)
    return keys


async def opened(folder: Path, rows: MemoryStore | None = None) -> KnownStores:
    own = {"acme"}
    return await KnownStores.open(folder, rows or MemoryStore(), own, asyncio.to_thread)


async def test_marks_outlive_the_node(tmp_path: Path) -> None:
    """A mark that was kept is there after a restart, each under the name of its store."""
    known = await opened(tmp_path)
    await asyncio.gather(known.of(STORE).remember("one"), known.of(OTHER).remember("two"))
    again = await opened(tmp_path)
    marks = [again.of(store).mark for store in (STORE, OTHER, "hdfs://n:1/x")]
    assert marks == ["one", "two", ""]


async def test_a_damaged_file_is_no_mark(tmp_path: Path) -> None:
    """The node starts without the marks, and the next one that it keeps mends the file."""
    await (await opened(tmp_path)).of(STORE).remember("one")
    for damaged in (b"{", b"[]", b'{"stores": 3}', b"{}", b"\xff"):
        (tmp_path / "tier" / FILE).write_bytes(damaged)
        known = await opened(tmp_path)
        assert known.of(STORE).mark == ""
    await known.of(STORE).remember("two")
    assert (await opened(tmp_path)).of(STORE).mark == "two"


async def test_a_mark_that_is_not_kept_is_not_known(tmp_path: Path) -> None:
    """A failure to write is the caller's."""
    known = await opened(tmp_path)
    (tmp_path / "tier").write_bytes(b"no folder")
    with pytest.raises(OSError, match="tier"):
        await known.of(STORE).remember("one")
    assert known.of(STORE).mark == ""


async def test_objects_of_all_raft_groups_must_be_there(tmp_path: Path) -> None:
    """Rows name live objects of each raft group, as the store has them: by space."""
    rows = MemoryStore()
    first = put_objects(rows, 1, "", 6)
    put_objects(rows, 2, "", dropped_at_ms=7)
    in_folder = put_objects(rows, 5, "plain")
    own = put_objects(rows, 2**32 - 2, "acme")
    known = await opened(tmp_path, rows)
    expected = [*first[:4], *(f"spaces/plain/{key}" for key in in_folder)]
    assert await known.of(STORE).keys() == expected
    assert await known.of(OTHER, "acme").keys() == own
    assert await (await opened(tmp_path)).of(STORE).keys() == []


async def test_rows_that_cannot_be_read_tell_nothing(tmp_path: Path) -> None:
    """It is an error of the node, never "no object has to be there"."""

    class Damaged(MemoryStore):
        def scan(self, begin: bytes, end: bytes) -> None:  # type: ignore[override]
            raise StateError("a block is damaged")

    known = await opened(tmp_path, Damaged())
    with pytest.raises(OSError, match="a block is damaged"):
        await known.of(STORE).keys()
