"""Faults of Google's store: the driver gives the data or a clear error."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from strata_runtime.metrics import Metrics
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import (
    CorruptTransferError,
    ObjectStore,
    RefusedError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
)
from strata_tier.store.url import parse
from tests.parts.fault_proxy import (
    Fault,
    FaultProxy,
    Message,
    Rule,
    connection_lost,
    cut,
    flipped,
    throttled,
)
from tests.parts.gcs_server import GcsServer

PART = 256 * 1024
BODY = os.urandom(100_000)


@dataclass
class Setting:
    """A store behind a proxy.

    Attributes:
        proxy: stands before the emulator.
        store: three tries, short pauses and times.
        metrics: of the store.
    """

    proxy: FaultProxy
    store: ObjectStore
    metrics: Metrics

    def retries(self, operation: str) -> float:
        """How often requests of a kind were repeated."""
        labels = {"store": self.store.name, "operation": operation}
        return self.metrics.counter("strata_tier_store_retries_total").value(labels)


@pytest.fixture
async def setting(gcs_server: GcsServer) -> AsyncIterator[Setting]:
    """A new bucket behind a proxy without rules."""
    place, metrics = gcs_server.place(), Metrics()
    async with FaultProxy(gcs_server.daemon.port).serving() as proxy:
        url = place.url.replace(gcs_server.endpoint, proxy.endpoint)
        options = place.options(
            attempts=3, part_bytes=PART, request_timeout_ms=3000, connect_timeout_ms=1000
        )
        store = await open_store(url, OpenWith(options=options, metrics=metrics))
        yield Setting(proxy, store, metrics)
        await store.close()


def is_upload(request: Message) -> bool:
    """Whether a request sends a body."""
    return request.method in ("POST", "PUT")


def is_download(request: Message) -> bool:
    """Whether a request reads an object."""
    return request.method == "GET" and "alt=media" in request.path


@pytest.mark.parametrize(
    "fault", [throttled(), throttled("429 Too Many Requests"), connection_lost]
)
async def test_refusals_that_pass(setting: Setting, fault: Fault) -> None:
    """A store that fails twice and then serves is not seen by the caller, but counted."""
    for matches in (is_upload, is_download):
        setting.proxy.rules.append(Rule(matches, fault, 2))
    await setting.store.put("a.bin", BODY)
    assert await setting.store.get("a.bin") == BODY
    assert setting.retries("put") == setting.retries("get") == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("429 Too Many Requests", ThrottledError),
        ("503 Service Unavailable", StoreUnavailableError),
        ("504 Gateway Timeout", StoreTimeoutError),
        ("401 Unauthorized", RefusedError),
        ("403 Forbidden", RefusedError),
    ],
)
async def test_refusals_that_stay(setting: Setting, status: str, kind: type[Exception]) -> None:
    """Each answer of the store is its own error once trying again did not help."""
    setting.proxy.rules.append(Rule(lambda request: True, throttled(status)))
    for call in (
        setting.store.put("a.bin", BODY),
        setting.store.get("a.bin"),
        setting.store.list(),
        setting.store.delete(["a.bin"]),
    ):
        with pytest.raises(kind):
            await call


async def test_bodies_that_are_cut_or_wrong(setting: Setting) -> None:
    """A body that ends early or has a wrong bit is read again; if it stays so, it is an error."""
    await setting.store.put("a.bin", BODY)
    for fault in (cut(1000), flipped(5000)):
        rule = Rule(is_download, fault, 2)
        setting.proxy.rules[:] = [rule]
        assert await setting.store.get("a.bin") == BODY
        rule.times = 100
        with pytest.raises((CorruptTransferError, StoreUnavailableError)):
            await setting.store.get("a.bin")
    setting.proxy.rules[:] = [Rule(is_download, cut(1000))]
    with pytest.raises((CorruptTransferError, StoreUnavailableError)):
        await setting.store.get("a.bin", 10, 5000)


async def test_a_server_that_answers_nothing(gcs_server: GcsServer, setting: Setting) -> None:
    """Requests to a server that hangs end in time, as timeouts; afterwards all is well."""
    await setting.store.put("a.bin", BODY)
    gcs_server.daemon.pause()
    try:
        with pytest.raises(StoreTimeoutError):
            await setting.store.get("a.bin")
    finally:
        gcs_server.daemon.resume()
    assert await setting.store.get("a.bin") == BODY


async def test_a_bucket_that_is_not_there(gcs_server: GcsServer) -> None:
    """A missing bucket is "the store is missing" where something is looked for."""
    bucket = parse(gcs_server.place().url).host
    store = await open_store(f"gs://{bucket}-gone?endpoint={gcs_server.endpoint}")
    for call in (store.get("a.bin"), store.head("a.bin"), store.list(), store.delete(["a.bin"])):
        with pytest.raises(StoreMissingError):
            await call
    await store.close()
