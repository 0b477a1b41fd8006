"""A storage node that could not stop, or start, as it should is started again in its process.

A container does so with a member that fails: what one run leaves locked would keep all later ones
out.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strata_metadata.cache import MetadataCache
from strata_seglog.errors import LogFailed
from strata_seglog.log import CommitLog
from strata_seglog.scrub import ScrubResult
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_state.ports import StateError
from strata_state.rocksdb_store import RocksdbStore
from strata_storage.cluster.hosting import Hosting
from strata_storage.process import member_setup
from strata_storage.process.node import StorageNode
from strata_testing import until
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """One node with real files."""
    async for made in cluster_of(tmp_path, 1, real=True):
        yield made


async def bodies(cluster: ClusterUnderTest) -> set[bytes]:
    """Return what can be read."""
    found: set[bytes] = set()
    for queue in range(4):
        found |= {each.message for each in (await cluster.fetch(GROUP, queue)).messages}
    return found


def fail_once(patch: pytest.MonkeyPatch, owner: type, name: str, failure: Exception) -> None:
    """Let a method do its work, and then fail, the next time it is called."""
    method = getattr(owner, name)

    def failing(*given: object, **named: object) -> object:
        patch.setattr(owner, name, method)
        method(*given, **named)
        raise failure

    patch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "failure"),
    [
        (RocksdbStore, "flush", StateError("No space left on device")),
        (RocksdbStore, "close", StateError("No space left on device")),
        (RocksDbMetadataStore, "close", OSError("No space left on device")),
        (CommitLog, "close", LogFailed("the last sync failed")),
        (StorageNode, "close", RuntimeError("a mistake in the code")),
        (MetadataCache, "close", RuntimeError("a mistake in the code")),
    ],
    ids=["flush", "rows", "metadata", "log", "node", "cache"],
)
async def test_a_stop_that_fails_leaves_the_folder_free(
    cluster: ClusterUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    failure: Exception,
) -> None:
    """The failure is told; everything else is closed, and the next run finds every message."""
    [node] = cluster.members
    await cluster.append(GROUP, [b"before"])
    fail_once(monkeypatch, owner, name, failure)
    with pytest.raises(type(failure), match=str(failure)):
        await cluster.members[node].stop()
    await cluster.start(node)
    await cluster.append(GROUP, [b"after"])
    assert await bodies(cluster) == {b"before", b"after"}


async def test_a_start_that_fails_leaves_the_folder_free(cluster: ClusterUnderTest) -> None:
    """Its port is taken: when it is free again, the node starts."""
    [node] = cluster.members
    member = cluster.members[node]
    await cluster.append(GROUP, [b"before"])
    await member.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        member.port = taken.getsockname()[1]
        for _ in range(2):
            with pytest.raises(OSError, match="has the port"):
                await cluster.start(node)
            member.member = None
    await cluster.start(node)
    assert await bodies(cluster) == {b"before"}


async def test_a_start_that_fails_late_leaves_the_folder_free(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves already when it turns out that its replicas cannot be settled."""
    [node] = cluster.members
    member = cluster.members[node]
    await cluster.append(GROUP, [b"before"])
    await member.stop()

    async def fails(_: Hosting) -> None:
        raise RuntimeError("a mistake in the code")

    with monkeypatch.context() as patch:
        patch.setattr(Hosting, "settle", fails)
        with pytest.raises(RuntimeError, match="a mistake"):
            await cluster.start(node)
    member.member = None
    await cluster.start(node)
    assert await bodies(cluster) == {b"before"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(RocksDbMetadataStore, "__init__"), (RocksdbStore, "__init__"), (CommitLog, "open")],
    ids=["metadata", "rows", "log"],
)
async def test_a_start_that_is_cancelled_leaves_the_folder_free(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """In the middle of an opening, which a thread goes on with: it is opened, and closed."""
    [node] = cluster.members
    await cluster.append(GROUP, [b"before"])
    await cluster.members[node].stop()
    opening = HeldCall(getattr(owner, name))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, opening)
        starting = asyncio.ensure_future(cluster.start(node))
        await until(opening.begun.is_set)
        starting.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not starting.done()
        opening.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
    cluster.members[node].member = None
    await cluster.start(node)
    assert await bodies(cluster) == {b"before"}


async def test_a_stop_waits_for_the_sync_that_runs(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB cannot be closed in the middle of a sync: the folder would stay locked."""
    [node] = cluster.members
    await cluster.append(GROUP, [b"before"])
    await cluster.members[node].stop()
    often = partial(member_setup.MemberOptions, metadata_sync_ms=10)
    sync = HeldCall(lambda cache: cache._store.sync())
    with monkeypatch.context() as patch:
        patch.setattr(member_setup, "MemberOptions", often)
        await cluster.start(node)
        patch.setattr(MetadataCache, "sync", lambda cache: sync(cache))
        await until(sync.begun.is_set)
        stopping = asyncio.ensure_future(cluster.members[node].stop())
        await asyncio.sleep(0.3)
        assert not stopping.done()
        sync.may_end.set()
        await stopping
    await cluster.start(node)
    assert await bodies(cluster) == {b"before"}


async def test_a_stop_waits_for_long_work(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild of rows or a scrub reads the log for minutes: it is closed when that has ended."""
    [node] = cluster.members
    await cluster.append(GROUP, [b"before"])
    member = cluster.members[node].member
    assert member is not None
    running = member.app._running
    assert running is not None
    scrub, close = HeldCall(running.log.scrub_step), CommitLog.close
    closed: list[CommitLog] = []

    def noted(log: CommitLog) -> None:
        closed.append(log)
        close(log)

    monkeypatch.setattr(CommitLog, "close", noted)
    scrubbing = asyncio.ensure_future(running.threads.flushes(partial(scrub, 1_000_000)))
    await until(scrub.begun.is_set)
    stopping = asyncio.ensure_future(cluster.members[node].stop())
    await asyncio.sleep(0.5)
    assert (stopping.done(), closed) == (False, [])
    scrub.may_end.set()
    await stopping
    assert closed == [running.log]
    assert isinstance(await scrubbing, ScrubResult)


class HeldCall:
    """A blocking call that begins to work when the test lets it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self._work = work

    def __call__(self, *given: object, **named: object) -> object:
        self.begun.set()
        assert self.may_end.wait(30)
        return self._work(*given, **named)

    def __get__(self, owned: object, owner: type) -> Callable[..., Any]:
        return self if owned is None else partial(self, owned)
