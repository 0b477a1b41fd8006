"""Faults of S3 stores: the driver gives the data or a clear error."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from strata_runtime.metrics import Metrics
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import (
    Buffer,
    CorruptTransferError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooShortError,
    RefusedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
    parts_of,
)
from tests.parts.fault_proxy import (
    FaultProxy,
    Message,
    Rule,
    answer_lost,
    connection_lost,
    cut,
    delayed,
    flipped,
    flipped_request,
    throttled,
)
from tests.parts.s3_server import S3Server

PART = 5 * 1024 * 1024
BODY = os.urandom(100_000)


@dataclass
class Setting:
    """A store behind a proxy.

    Attributes:
        server: the real server.
        bucket: the store's.
        proxy: stands between them.
        store: three tries, short pauses and times.
        metrics: of the store.
    """

    server: S3Server
    bucket: str
    proxy: FaultProxy
    store: ObjectStore
    metrics: Metrics

    def retries(self, operation: str) -> float:
        """How often requests of a kind were repeated."""
        labels = {"store": self.store.name, "operation": operation}
        return self.metrics.counter("strata_tier_store_retries_total").value(labels)

    def uploads(self) -> list[Any]:
        """Multipart uploads that nobody ended."""
        client = self.server.client()
        found = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        client.close()
        return list(found)


@pytest.fixture
async def setting(s3_server: S3Server) -> AsyncIterator[Setting]:
    """A new bucket behind a proxy without rules."""
    bucket, metrics = s3_server.new_bucket(), Metrics()
    async with FaultProxy(s3_server.port).serving() as proxy:
        place = s3_server.place(bucket, proxy.endpoint)
        options = place.options(
            attempts=3, part_bytes=PART, request_timeout_ms=3000, connect_timeout_ms=1000
        )
        given = OpenWith(options=options, metrics=metrics, credentials=place.credentials)
        store = await open_store(place.url, given)
        yield Setting(s3_server, bucket, proxy, store, metrics)
        await store.close()


def is_get(request: Message) -> bool:
    """Whether a request reads an object."""
    return request.method == "GET" and "list-type" not in request.path


def is_put(request: Message) -> bool:
    """Whether a request sends a body."""
    return request.method == "PUT"


def is_part(number: int) -> Callable[[Message], bool]:
    """Whether a request sends this part of a multipart upload."""
    return lambda request: f"partNumber={number}" in request.path


def is_completion(request: Message) -> bool:
    """Whether a request ends a multipart upload."""
    return request.method == "POST" and "uploadId=" in request.path


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("503 Slow Down", "SlowDown"),
        ("429 Too Many Requests", "TooManyRequests"),
        ("500 Internal Server Error", "InternalError"),
        ("503 Service Unavailable", "ServiceUnavailable"),
    ],
)
async def test_refusals_that_pass(setting: Setting, status: str, code: str) -> None:
    """A store that refuses twice and then serves is not seen by the caller, but counted."""
    for matches in (is_put, is_get):
        setting.proxy.rules.append(Rule(matches, throttled(status, code), 2))
    await setting.store.put("a.bin", BODY)
    assert await setting.store.get("a.bin") == BODY
    assert setting.retries("put") == setting.retries("get") == 2


async def test_throttling_that_stays(setting: Setting) -> None:
    """A caller that is refused for too long is told so, and nothing was stored."""
    rule = Rule(lambda request: True, throttled())
    setting.proxy.rules.append(rule)
    for call in (setting.store.put("a.bin", BODY), setting.store.head("a.bin")):
        with pytest.raises((ThrottledError, StoreUnavailableError)):
            await call
    rule.times = 0
    with pytest.raises(ObjectNotFoundError):
        await setting.store.head("a.bin")


async def test_only_the_failed_part_is_sent_again(setting: Setting) -> None:
    """A part that fails in the middle of an upload is repeated alone, and the object is whole."""
    setting.proxy.rules.append(Rule(is_part(2), throttled(), 2))
    body = os.urandom(3 * PART + 1)
    await setting.store.put("parts.bin", body)
    assert setting.proxy.seen["PART"] == 4 + 2
    assert await setting.store.get("parts.bin") == body


@pytest.mark.parametrize("fault", [throttled(), connection_lost])
async def test_an_upload_that_fails_for_good(setting: Setting, fault: Any) -> None:
    """An upload that fails half way leaves the old object as it was and no parts to pay for."""
    await setting.store.put("parts.bin", b"before")
    rule = Rule(is_part(3), fault)
    setting.proxy.rules.append(rule)
    with pytest.raises(StoreError):
        await setting.store.put("parts.bin", bytes(4 * PART))
    assert await setting.store.get("parts.bin") == b"before"
    assert setting.uploads() == []


async def test_a_cancelled_upload_is_aborted(setting: Setting) -> None:
    """An upload whose caller gave up leaves no parts to pay for."""
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[Buffer]:
        for _ in range(3):
            yield bytes(PART)
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        put = group.create_task(setting.store.put("parts.bin", endless))
        await begun.wait()
        put.cancel()
    assert setting.uploads() == []


async def test_a_lost_answer_to_the_completion(setting: Setting) -> None:
    """When the upload was completed and the answer was lost, the put has succeeded."""
    setting.proxy.rules.append(Rule(is_completion, answer_lost, 1))
    body = os.urandom(PART + 1)
    info = await setting.store.put("parts.bin", body)
    assert info.size_bytes == len(body)
    assert await setting.store.get("parts.bin") == body


async def test_bodies_that_are_cut(setting: Setting) -> None:
    """A body that ends early is read again; one that always does is an error, never short."""
    await setting.store.put("a.bin", BODY)
    rule = Rule(is_get, cut(1000), 2)
    setting.proxy.rules.append(rule)
    assert await setting.store.get("a.bin") == BODY
    for position, length in ((0, None), (10, 5000)):
        rule.times = 100
        with pytest.raises(CorruptTransferError):
            await setting.store.get("a.bin", position, length)


async def test_bytes_that_flip_on_the_way_down(setting: Setting) -> None:
    """A whole object that came with a wrong bit is read again; if it stays wrong, it is an error.

    Ranges have no checksum in S3: the blocks inside the objects have their own.
    """
    await setting.store.put("a.bin", BODY)
    rule = Rule(is_get, flipped(5000), 1)
    setting.proxy.rules.append(rule)
    assert await setting.store.get("a.bin") == BODY
    rule.times = 100
    with pytest.raises(CorruptTransferError):
        await setting.store.get("a.bin")


async def test_bytes_that_flip_on_the_way_up(setting: Setting) -> None:
    """A body that arrives with a wrong bit is refused by the store and sent again."""
    rule = Rule(is_put, flipped_request(5000), 1)
    setting.proxy.rules.append(rule)
    await setting.store.put("a.bin", BODY)
    assert rule.times == 0
    assert await setting.store.get("a.bin") == BODY
    setting.proxy.rules.append(Rule(lambda request: request.is_part, flipped_request(5000), 1))
    large = os.urandom(2 * PART)
    await setting.store.put("parts.bin", large)
    assert await setting.store.get("parts.bin") == large


async def test_a_slow_store_is_not_a_broken_one(setting: Setting) -> None:
    """Answers within the time are answers."""
    setting.proxy.rules.append(Rule(lambda request: True, delayed(0.5)))
    await setting.store.put("a.bin", BODY)
    assert await setting.store.get("a.bin", 7, 100) == BODY[7:107]


async def test_a_store_that_answers_nothing(setting: Setting) -> None:
    """Requests to a server that hangs end as timeouts; afterwards all is well."""
    await setting.store.put("a.bin", BODY)
    setting.server.daemon.pause()
    try:
        with pytest.raises(StoreTimeoutError):
            await setting.store.get("a.bin")
    finally:
        setting.server.daemon.resume()
    assert await setting.store.get("a.bin") == BODY


async def test_a_store_that_is_down_and_comes_back(setting: Setting) -> None:
    """While the server is dead calls fail as unavailable; what was put before is there after."""
    await setting.store.put("a.bin", BODY)
    setting.server.daemon.kill()
    try:
        for call in (
            setting.store.get("a.bin"),
            setting.store.put("b.bin", BODY),
            setting.store.list(),
            setting.store.delete(["a.bin"]),
        ):
            with pytest.raises(StoreUnavailableError):
                await call
    finally:
        setting.server.daemon.start()
    assert await setting.store.get("a.bin") == BODY


async def test_a_server_killed_in_the_middle_of_an_upload(setting: Setting) -> None:
    """The upload fails or ends whole, never half; the same put again succeeds."""
    begun = asyncio.Event()
    body = os.urandom(4 * PART)

    async def parts() -> AsyncIterator[Buffer]:
        for position in range(0, len(body), PART):
            yield body[position : position + PART]
            if position == PART:
                setting.server.daemon.kill()
                begun.set()

    with pytest.raises(StoreError):
        await setting.store.put("parts.bin", parts)
    assert begun.is_set()
    setting.server.daemon.start()
    with pytest.raises(ObjectNotFoundError):
        await setting.store.head("parts.bin")
    await setting.store.put("parts.bin", parts_of([body]))
    assert await setting.store.get("parts.bin") == body


async def test_a_bucket_that_is_gone(setting: Setting) -> None:
    """A deleted bucket is "the store is missing" on every way, never "no such object"."""
    await setting.store.put("a.bin", BODY)
    client = setting.server.client()
    for found in client.list_objects_v2(Bucket=setting.bucket)["Contents"]:
        client.delete_object(Bucket=setting.bucket, Key=found["Key"])
    client.delete_bucket(Bucket=setting.bucket)
    client.close()
    for call in (
        setting.store.get("a.bin"),
        setting.store.get("a.bin", 0, 10),
        setting.store.head("a.bin"),
        setting.store.list(),
        setting.store.delete(["a.bin"]),
        setting.store.put("b.bin", BODY),
        setting.store.put("b.bin", bytes(2 * PART)),
    ):
        with pytest.raises(StoreMissingError):
            await call


async def test_credentials_that_are_revoked(setting: Setting) -> None:
    """Credentials that hold no more are "refused", at once, on every way; new ones heal it."""
    await setting.store.put("a.bin", BODY)
    setting.server.revoke()
    try:
        for call in (
            setting.store.get("a.bin"),
            setting.store.head("a.bin"),
            setting.store.list(),
            setting.store.delete(["a.bin"]),
            setting.store.put("b.bin", BODY),
        ):
            with pytest.raises(RefusedError):
                await call
    finally:
        setting.server.restore_credentials()
    assert setting.retries("get") == 0
    assert await setting.store.get("a.bin") == BODY


async def test_leftovers_of_a_dead_node(setting: Setting) -> None:
    """A multipart upload that nobody ended is found by its age and removed."""
    client = setting.server.client()
    client.create_multipart_upload(Bucket=setting.bucket, Key="some/prefix/dead.bin")
    client.create_multipart_upload(Bucket=setting.bucket, Key="other/prefix/alive.bin")
    client.close()
    now_ms = round(time.time() * 1000)
    assert await setting.store.remove_leftovers(now_ms - 60_000) == 0
    assert await setting.store.remove_leftovers(now_ms + 60_000) == 1
    assert [upload["Key"] for upload in setting.uploads()] == ["other/prefix/alive.bin"]


async def test_an_object_cut_behind_the_stores_back(s3_server: S3Server, setting: Setting) -> None:
    """An object that lost its end in the store is found by the read that needs it."""
    await setting.store.put("a.bin", BODY)
    os.truncate(s3_server.data / setting.bucket / "some" / "prefix" / "a.bin", 500)
    with pytest.raises(ObjectTooShortError):
        await setting.store.get("a.bin", 400, 200)
