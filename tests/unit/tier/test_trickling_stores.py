"""A store or a proxy that sends a byte now and then holds no thread of a driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import StoreError
from strata_tier.store.store_options import StoreOptions

SIZE = 1000
THREADS = 2
BODY = b"x" * SIZE
HEAD = (
    f"HTTP/1.1 206 Partial Content\r\nContent-Length: {SIZE}\r\n"
    f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}\r\n\r\n"
).encode()
PAGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


class Trickle:
    """A server whose answers may come byte by byte.

    Attributes:
        at_once: how much of an answer comes at once; None: all of it.
        port: where it listens.
    """

    def __init__(self) -> None:
        self.at_once: int | None = None
        self._ended = threading.Event()
        trickle = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                whole = (PAGE_HEAD if "list-type" in self.path else HEAD) + BODY
                at_once = len(whole) if trickle.at_once is None else trickle.at_once
                with suppress(OSError):
                    self.wfile.write(whole[:at_once])
                    for byte in whole[at_once:]:
                        # Well below the timeout, which counts from the last byte.
                        if trickle._ended.wait(0.05):
                            return
                        self.wfile.write(bytes((byte,)))

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """End all answers and the server."""
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def trickle() -> Iterator[Trickle]:
    """A server that is well."""
    server = Trickle()
    yield server
    server.close()


def given() -> OpenWith:
    options = StoreOptions(max_requests_in_flight=THREADS, request_timeout_ms=400, attempts=1)
    return OpenWith(options, credentials=S3Credentials("key", "secret"))


@pytest.mark.parametrize("at_once", [5, len(HEAD), len(HEAD) + 500])
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
async def test_a_store_that_trickles_holds_no_thread(
    trickle: Trickle, scheme: str, is_used: bool, at_once: int
) -> None:
    """Reads end in their time, in head or body, and a store that is well again serves at once."""
    store = await open_store(
        f"{scheme}://bucket/p?endpoint=http://127.0.0.1:{trickle.port}", given()
    )
    try:
        if is_used:
            assert await store.get("a/b.set", 0, SIZE) == BODY
        trickle.at_once = at_once
        reads = [store.get("a/b.set", 0, SIZE) for _ in range(THREADS)]
        for failure in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(failure, StoreError)
        trickle.at_once = None
        assert await store.get("a/b.set", 0, SIZE) == BODY
    finally:
        await store.close()


async def test_a_listing_that_trickles_holds_no_thread(trickle: Trickle) -> None:
    """The same for an answer that boto3 reads before it returns."""
    store = await open_store(f"s3://bucket/p?endpoint=http://127.0.0.1:{trickle.port}", given())
    try:
        trickle.at_once = len(PAGE_HEAD)
        lists = [store.list() for _ in range(THREADS)]
        for failure in await asyncio.gather(*lists, return_exceptions=True):
            assert isinstance(failure, StoreError)
        trickle.at_once = None
        assert await store.get("a/b.set", 0, SIZE) == BODY
    finally:
        await store.close()
