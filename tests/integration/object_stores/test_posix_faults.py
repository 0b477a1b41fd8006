"""Faults of disks and mounts: the driver gives the data or a clear error."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from strata_tier.store.drivers import posix
from strata_tier.store.drivers.posix import MARK, PosixStore
from strata_tier.store.ports import (
    RefusedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from strata_tier.store.retrying import RequestGate
from strata_tier.store.store_options import StoreOptions

BODY = os.urandom(100_000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PosixStore]:
    """Two tries, no pauses."""
    options = StoreOptions(attempts=2, first_pause_ms=1, part_bytes=40_000)
    opened = await PosixStore.open(tmp_path / "store", RequestGate("posix://tests", options))
    yield opened
    await opened.close()


def failing(number: int) -> Callable[..., Any]:
    """A system call that fails."""

    def call(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EROFS, RefusedError),
        (errno.EIO, StoreUnavailableError),
        (errno.ESTALE, StoreUnavailableError),
    ],
)
@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
async def test_a_disk_that_refuses(
    store: PosixStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[StoreError],
) -> None:
    """A write, sync or rename that fails is the matching error, and the old object stays."""
    await store.put("a.bin", b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(kind):
            await store.put("a.bin", BODY)
    assert await store.get("a.bin") == b"before"
    assert list((tmp_path / "store" / ".uploads").iterdir()) == []


async def test_a_put_is_durable_before_it_returns(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before its rename, then its folder and all above it up to the root."""
    await store.put("first.bin", b"makes the store")
    synced: list[str] = []
    root = str(tmp_path / "store")

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(root))

    monkeypatch.setattr(os, "fsync", fsync)
    await store.put("x/y/a.bin", BODY)
    assert synced[0].startswith("/.uploads/")
    assert synced[1:] == ["/x/y", "/x", ""]


async def test_a_mount_that_is_gone(store: PosixStore, tmp_path: Path) -> None:
    """A folder without its mark is "the store is missing" on every way: it is not mounted."""
    await store.put("a.bin", BODY)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for there in (False, True):
        if there:
            (tmp_path / "store").mkdir()
        for call in (
            store.get("a.bin"),
            store.head("a.bin"),
            store.list(),
            store.delete(["a.bin"]),
            store.put("b.bin", BODY),
        ):
            with pytest.raises(StoreMissingError):
                await call
    (tmp_path / "store").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert await store.get("a.bin") == BODY


async def test_an_object_is_there_after_opening_again(tmp_path: Path) -> None:
    """Opening a folder that holds objects changes nothing in it."""
    for body in (b"first", b"second"):
        store = await PosixStore.open(tmp_path / "store", RequestGate("posix://tests"))
        await store.put(f"{body.decode()}.bin", body)
        assert await store.get("first.bin") == b"first"
        await store.close()
    assert (tmp_path / "store" / MARK).exists()


async def test_leftovers_of_a_dead_node(store: PosixStore, tmp_path: Path) -> None:
    """A temporary file that nobody renamed is found by its age, removed, and never listed."""
    info = await store.put("a.bin", BODY)
    (tmp_path / "store" / ".uploads" / "dead").write_bytes(b"half")
    assert [found.key for found in (await store.list()).objects] == ["a.bin"]
    assert await store.remove_leftovers(info.modified_ms - 60_000) == 0
    assert await store.remove_leftovers(info.modified_ms + 60_000) == 1


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_put_on_a_mount_that_hangs_ends_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """A put whose threads hang fails as a timeout, or is cancelled; later the store is well."""
    begun, back = threading.Event(), threading.Event()

    def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
        def hang(*arguments: Any) -> Any:
            begun.set()
            back.wait()
            return call(*arguments)

        return hang

    options = StoreOptions(attempts=2, first_pause_ms=1, request_timeout_ms=200)
    store = await PosixStore.open(tmp_path / "store", RequestGate("posix://tests", options))
    await store.put("a.bin", b"before")
    with monkeypatch.context() as patch:
        for name in ("_write", "_remove_quietly"):
            patch.setattr(posix, name, hanging(getattr(posix, name)))
        put = asyncio.ensure_future(store.put("a.bin", BODY))
        await asyncio.to_thread(begun.wait)
        if is_given_up:
            put.cancel()
        ended, _ = await asyncio.wait([put], timeout=20)
        back.set()
    assert ended, "it waits for the mount"
    assert put.cancelled() if is_given_up else isinstance(put.exception(), StoreTimeoutError)
    await store.put("b.bin", BODY)
    assert (await store.get("a.bin"), await store.get("b.bin")) == (b"before", BODY)
    await store.close()
