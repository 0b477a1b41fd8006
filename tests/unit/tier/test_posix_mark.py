"""A folder whose mount is missing is never taken for a new store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata_tier.store.drivers.posix import MARK, PosixStore
from strata_tier.store.known import NothingKnown
from strata_tier.store.ports import (
    ObjectNotFoundError,
    StoreMissingError,
    StoreUnavailableError,
)
from strata_tier.store.retrying import RequestGate
from strata_tier.store.store_options import StoreOptions
from tests.unit.tier.known import Known


class UnkeptKnown(Known):
    """The knowledge of a node whose own disk takes nothing."""

    async def remember(self, mark: str) -> None:
        raise OSError("no space left on the node's disk")


async def opened(
    root: Path, known: NothingKnown | None = None, *, must_exist: bool = False
) -> PosixStore:
    options = StoreOptions(attempts=2, first_pause_ms=1)
    gate = RequestGate("posix://tests", options)
    return await PosixStore.open(root, gate, known, must_exist=must_exist)


async def check_missing(store: PosixStore) -> None:
    """Check that nothing can be done with a store, and that it is "missing" each time."""
    for call in (
        store.put("b.bin", b"lost"),
        store.get("a.bin"),
        store.head("a.bin"),
        store.list(),
        store.delete(["a.bin"]),
        store.remove_leftovers(2**60),
    ):
        with pytest.raises(StoreMissingError, match=f"{MARK}.*not mounted"):
            await call


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def used(root: Path, key: str = "a.bin") -> Known:
    """Put an object into a new store; return what is known then."""
    known = Known()
    store = await opened(root, known)
    await store.put(key, b"kept")
    await store.close()
    assert known.mark == (root / MARK).read_text().strip() != ""
    return known


@pytest.mark.parametrize("below", ["nothing", "a folder", "an older mark", "another store"])
async def test_a_known_store_is_not_made_again(tmp_path: Path, below: str) -> None:
    """Opened while its mount is missing, a store puts nothing there; later it is well."""
    root, away = tmp_path / "store", tmp_path / "away"
    known = await used(root)
    root.rename(away)
    if below != "nothing":
        root.mkdir()
    if below == "an older mark":
        (root / MARK).touch()
    if below == "another store":
        await used(root, "of-another.bin")
    before = files_in(root)
    store = await opened(root, known)
    await check_missing(store)
    assert files_in(root) == before
    if root.exists():
        root.rename(tmp_path / "below")
    away.rename(root)
    assert await store.get("a.bin") == b"kept"
    await store.put("b.bin", b"more")
    assert [info.key for info in (await store.list()).objects] == ["a.bin", "b.bin"]
    await store.close()


@pytest.mark.parametrize("has_mark", [False, True])
async def test_objects_tell_a_store_of_an_older_version(tmp_path: Path, has_mark: bool) -> None:
    """Without a known mark the store is the folder that has an object which must be there."""
    root = tmp_path / "store"
    root.mkdir()
    if has_mark:
        (root / MARK).touch()
    before = files_in(root)
    known = Known(keys=["never.bin", "home/a.bin"])
    store = await opened(root, known)
    await check_missing(store)
    assert (files_in(root), known.mark) == (before, "")
    (root / "home").mkdir()
    (root / "home" / "a.bin").write_bytes(b"kept")
    assert await store.get("home/a.bin") == b"kept"
    await store.put("home/b.bin", b"more")
    assert known.mark == (root / MARK).read_text().strip() != ""
    assert await store.get("home/b.bin") == b"more"
    await store.close()


async def test_a_mark_that_an_operator_writes_counts(tmp_path: Path) -> None:
    """A store that is lost for good is replaced by a folder with the mark that the error names."""
    root = tmp_path / "store"
    known = await used(root)
    root.rename(tmp_path / "burnt")
    root.mkdir()
    store = await opened(root, known)
    with pytest.raises(StoreMissingError) as missing:
        await store.put("b.bin", b"x")
    assert MARK in str(missing.value)
    (root / ".uploads").mkdir()
    (root / MARK).write_text(f"{known.mark}\n")
    await store.put("b.bin", b"x")
    assert await store.get("b.bin") == b"x"
    await store.close()


async def test_nodes_that_begin_a_store_together_agree(tmp_path: Path) -> None:
    """Eight nodes make one mark, or give one of an older version the same content."""
    for is_older in (False, True):
        root = tmp_path / f"store-{is_older}"
        root.mkdir()
        if is_older:
            (root / ".uploads").mkdir()
            (root / MARK).touch()
        nodes = [Known() for _ in range(8)]
        stores = [await opened(root, known) for known in nodes]
        async with asyncio.TaskGroup() as group:
            for number, store in enumerate(stores):
                group.create_task(store.put(f"{number}.bin", b"x"))
        assert {known.mark for known in nodes} == {(root / MARK).read_text().strip()}
        for store in stores:
            assert len((await store.list()).objects) == 8
            await store.close()


async def test_only_a_put_writes(tmp_path: Path) -> None:
    """To look at a new folder, or at one with an older mark, changes nothing in it."""
    root = tmp_path / "store"
    for is_older in (False, True):
        if is_older:
            (root / MARK).touch()
        before = files_in(root) if root.exists() else []
        store = await opened(root)
        assert (await store.list()).objects == ()
        for call in (store.get("a.bin"), store.head("a.bin")):
            with pytest.raises(ObjectNotFoundError):
                await call
        await store.delete(["a.bin"])
        assert files_in(root) == before
        await store.close()


async def test_a_mark_that_cannot_be_kept_lets_nothing_in(tmp_path: Path) -> None:
    """A mark that cannot be kept might be missed later: nothing is put before."""
    store = await opened(tmp_path / "store", UnkeptKnown())
    with pytest.raises(StoreUnavailableError, match=r"cannot be kept.*node's disk"):
        await store.put("a.bin", b"x")
    assert files_in(tmp_path / "store") == [MARK]
    await store.close()


async def test_a_store_that_must_exist_is_never_made(tmp_path: Path) -> None:
    """A node that knows nothing, as a new one, waits for a mark when the URL says so."""
    root = tmp_path / "store"
    store = await opened(root, must_exist=True)
    await check_missing(store)
    assert not root.exists()
    root.mkdir()
    await check_missing(store)
    (root / MARK).touch()
    await store.put("a.bin", b"first")
    assert await store.get("a.bin") == b"first"
    await store.close()
