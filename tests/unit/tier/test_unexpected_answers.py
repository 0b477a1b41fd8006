"""Answers that no store gives: a proxy, or a page that asks for a password, speaks in its place."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import ObjectStore, StoreUnavailableError
from strata_tier.store.store_options import StoreOptions
from tests.parts.fault_proxy import Fault, FaultProxy, Forward, Message, Rule

PART = 256 * 1024
URLS = {"s3": "s3://bucket/prefix?endpoint={}", "gs": "gs://bucket/prefix?endpoint={}"}
DELETING_URLS = {**URLS, "s3 of google": "s3://bucket/prefix?endpoint={}&dialect=gs"}
PAGES = {
    "a page that is no XML": ("200 OK", b"<html><p>Log in<br>here</html>"),
    "a page that is XML": ("200 OK", b"<html><p>Log in</p></html>"),
    "another kind of JSON": ("200 OK", b'["Log in"]'),
    "an empty page": ("200 OK", b""),
    "a redirect": ("302 Found", b""),
    "a lasting redirect": ("308 Permanent Redirect", b""),
}
CALLS: tuple[Callable[[ObjectStore], Awaitable[object]], ...] = (
    lambda store: store.put("a.bin", b"body"),
    lambda store: store.put("a.bin", bytes(2 * PART)),
    lambda store: store.head("a.bin"),
    lambda store: store.list(),
)


def answering(status: str, body: bytes, *headers: str) -> Fault:
    """Answers without asking the store."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        start = f"HTTP/1.1 {status}"
        lines = (start, *headers, f"Content-Length: {len(body)}")
        sent = b"" if request.method == "HEAD" else body
        return Message(start, {"content-length": str(len(sent))}, "\r\n".join(lines).encode(), sent)

    return fault


@asynccontextmanager
async def behind(scheme: str, *rules: Rule) -> AsyncIterator[ObjectStore]:
    """A store of which only such answers come."""
    async with FaultProxy(0, list(rules)).serving() as proxy:
        opened = await open_store(
            DELETING_URLS[scheme].format(proxy.endpoint),
            OpenWith(
                options=StoreOptions(attempts=1, part_bytes=PART),
                credentials=S3Credentials("key", "secret"),
            ),
        )
        try:
            yield opened
        finally:
            await opened.close()


def every(fault: Fault) -> Rule:
    return Rule(lambda request: True, fault)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", URLS)
async def test_a_strangers_answer_is_a_store_that_cannot_serve(scheme: str, page: str) -> None:
    """The caller waits and tries again; any other exception would end the process."""
    async with behind(scheme, every(answering(*PAGES[page]))) as store:
        for call in CALLS:
            with pytest.raises(StoreUnavailableError):
                await call(store)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", URLS)
async def test_a_strangers_answer_in_the_middle_of_an_upload(scheme: str, page: str) -> None:
    """The stranger comes when an upload has begun."""
    begun = {
        "s3": answering("200 OK", b"<A><UploadId>upload</UploadId></A>"),
        "gs": answering("200 OK", b"", "Location: /upload"),
    }
    rules = [every(begun[scheme]), every(answering(*PAGES[page]))]
    rules[0].times = 1
    async with behind(scheme, *rules) as store:
        with pytest.raises(StoreUnavailableError):
            await store.put("a.bin", bytes(2 * PART))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", DELETING_URLS)
async def test_a_strangers_answer_deletes_nothing(scheme: str, page: str) -> None:
    """Objects of which the answer says nothing are asked for again."""
    async with behind(scheme, every(answering(*PAGES[page]))) as store:
        with pytest.raises(StoreUnavailableError):
            await store.delete(["a.bin", "b.bin"])


async def test_googles_answer_to_a_deletion_is_nothing() -> None:
    """An emulator writes nothing as JSON."""
    answers = (
        ("gs", "204 No Content", b""),
        ("gs", "200 OK", b"null\n"),
        ("s3 of google", "204 No Content", b""),
    )
    for scheme, status, body in answers:
        async with behind(scheme, every(answering(status, body))) as store:
            await store.delete(["a.bin", "b.bin"])


async def test_a_redirect_deletes_and_reads_nothing() -> None:
    """Google's store redirects nobody."""
    async with behind("gs", every(answering(*PAGES["a redirect"]))) as store:
        with pytest.raises(StoreUnavailableError, match="302"):
            await store.delete(["a.bin"])
        with pytest.raises(StoreUnavailableError, match="302"):
            await store.get("a.bin")


async def test_a_date_that_is_none_is_no_failed_put() -> None:
    """The object is stored; only when it was, by the store's clock, is not known."""
    for date in ("yesterday", "Thu, 99999999999999999999 Jan 2026 00:00:00 GMT"):
        stored = answering("200 OK", b"", 'ETag: "e"', f"Date: {date}")
        async with behind("s3", every(stored)) as store:
            info = await store.put("a.bin", b"body")
        assert (info.size_bytes, info.modified_ms) == (4, 0)


async def test_a_long_upload_is_continued_and_ended() -> None:
    """308 is the answer to each part but the last, whose answer describes the object."""
    told = {"name": "prefix/a.bin", "size": str(2 * PART), "updated": "1970-01-01T00:00:01Z"}
    rules = [
        every(answering("200 OK", b"", "Location: /upload")),
        every(answering("308 Resume Incomplete", b"", f"Range: bytes=0-{PART - 1}")),
        every(answering("200 OK", json.dumps(told).encode())),
    ]
    rules[0].times = rules[1].times = 1
    async with behind("gs", *rules) as store:
        info = await store.put("a.bin", bytes(2 * PART))
    assert (info.key, info.size_bytes, info.modified_ms) == ("a.bin", 2 * PART, 1000)
