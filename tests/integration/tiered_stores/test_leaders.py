"""Leaders that change while they upload: one object comes of it, in every kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from strata_testing import until
from strata_tier.store.drivers.gs import GsStore
from strata_tier.store.drivers.hdfs import HdfsStore
from strata_tier.store.drivers.posix import PosixStore
from strata_tier.store.drivers.s3 import S3Store
from strata_tier.store.opening import open_store
from strata_tier.store.ports import Body, ObjectStore
from tests.integration.storage.storage_cluster import ClusterUnderTest
from tests.integration.storage.tiered_cluster import (
    GROUP,
    committed_keys,
    fill,
    give_up_logs,
    is_uploaded,
    read_all,
    tiered_cluster,
)
from tests.parts.stores import Place, Scheme, UrlOf

DRIVERS: dict[Scheme, type[Any]] = {
    "posix": PosixStore,
    "s3": S3Store,
    "gs": GsStore,
    "hdfs": HdfsStore,
}
LIMIT_S = 60.0

pytestmark = pytest.mark.timeout(240)


class FirstPut:
    """The first upload of messages waits, before or after its object is in the store.

    Attributes:
        waits: set when it does.
        goes_on: to be set.
        is_done_first: whether the object is put before it waits.
    """

    def __init__(self, driver: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.goes_on = asyncio.Event(), asyncio.Event()
        self.is_done_first = False
        is_first, put = True, driver.put

        async def waiting(store: ObjectStore, key: str, body: Body, **options: object) -> Any:
            nonlocal is_first
            if not is_first or not key.endswith(".set"):
                return await put(store, key, body, **options)
            is_first = False
            if self.is_done_first:
                await put(store, key, body, **options)
            self.waits.set()
            await self.goes_on.wait()
            return await put(store, key, body, **options)

        monkeypatch.setattr(driver, "put", waiting)

    async def until_it_waits(self) -> None:
        """Return when the upload has come to where it waits."""
        async with asyncio.timeout(LIMIT_S):
            await self.waits.wait()


@pytest.fixture(params=DRIVERS)
def scheme(request: pytest.FixtureRequest) -> Scheme:
    """The kind of store."""
    kind: Scheme = request.param
    return kind


@pytest.fixture
def place(scheme: Scheme, url_of: UrlOf, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place in it; credentials come by the usual chain."""
    new = url_of(scheme)
    if new.credentials is not None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", new.credentials.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", new.credentials.secret_key)
    return new


@pytest.fixture
async def first_put(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> FirstPut:
    return FirstPut(DRIVERS[scheme], monkeypatch)


@pytest.fixture
async def cluster(tmp_path: Path, place: Place) -> AsyncIterator[ClusterUnderTest]:
    async with tiered_cluster(tmp_path, place.url) as running:
        yield running


async def objects_in(place: Place) -> set[str]:
    """Return the keys of all objects with messages."""
    store = await open_store(place.url)
    page = await store.list()
    await store.close()
    assert page.next_after is None
    return {info.key for info in page.objects if info.key.endswith(".set")}


@pytest.mark.parametrize("is_put", [False, True])
async def test_a_new_leader_finishes_what_was_dispatched(
    cluster: ClusterUnderTest, place: Place, first_put: FirstPut, is_put: bool
) -> None:
    """The leader dies before or after the object is in the store: one object comes of it."""
    first_put.is_done_first = is_put
    messages = await fill(cluster, 4, 3)
    await first_put.until_it_waits()
    leader = await cluster.until_led(GROUP)
    await cluster.members[leader].lose_power()
    await cluster.until_led(GROUP)
    messages += await fill(cluster, 2, 4)
    await until(lambda: is_uploaded(cluster), LIMIT_S)
    new_leader = await cluster.until_led(GROUP)
    assert await objects_in(place) == committed_keys(cluster, new_leader)
    assert await read_all(cluster) == messages
    await cluster.start(leader)
    await cluster.check_rows_equal(GROUP)


async def test_two_leaders_upload_at_once(cluster: ClusterUnderTest, first_put: FirstPut) -> None:
    """A deposed leader that is still sending changes nothing that its successor committed."""
    messages = await fill(cluster, 4, 5)
    await first_put.until_it_waits()
    old = await cluster.until_led(GROUP)
    new = next(name for name in cluster.members if name != old)
    cluster.stub.prefer(GROUP, new)
    await until(lambda: cluster.leader_of(GROUP) == new)
    await until(lambda: is_uploaded(cluster), LIMIT_S)
    before = committed_keys(cluster, new)
    first_put.goes_on.set()
    messages += await fill(cluster, 2, 6)
    await until(lambda: is_uploaded(cluster), LIMIT_S)
    assert before <= committed_keys(cluster, new)
    await give_up_logs(cluster)
    assert await read_all(cluster) == messages
    await cluster.check_rows_equal(GROUP)
