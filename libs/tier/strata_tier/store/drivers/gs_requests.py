"""One request to Google Cloud Storage: through the gate, its failure as the port's error.

It uses the JSON interface through urllib3. Credentials come from google-auth's usual chain (the
file named by GOOGLE_APPLICATION_CREDENTIALS, or the machine's account); a plain http endpoint,
which only an emulator has, gets no credentials.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import google.auth
import google_crc32c
import urllib3
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.urllib3 import Request as TokenRequest
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ReadTimeoutError

from strata_tier.store.drivers.bodies import Part
from strata_tier.store.drivers.threads import Threads
from strata_tier.store.drivers.watched import WATCHED_POOLS
from strata_tier.store.ports import (
    Buffer,
    CorruptTransferError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooShortError,
    RefusedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
)
from strata_tier.store.retrying import RequestGate, StoreOperation

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

Result = TypeVar("Result")

HOST = "storage.googleapis.com"
ENDPOINT = f"https://{HOST}"
SCOPE_HOST = "www.googleapis.com"
SCOPE = f"https://{SCOPE_HOST}/auth/devstorage.read_write"

_STATUSES: Mapping[int, type[StoreError]] = {
    400: CorruptTransferError,
    401: RefusedError,
    403: RefusedError,
    404: ObjectNotFoundError,
    408: StoreTimeoutError,
    412: ObjectExistsError,
    416: ObjectTooShortError,
    429: ThrottledError,
    504: StoreTimeoutError,
}
_TOO_FAST = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})


@dataclass(frozen=True, slots=True)
class GsRequest:
    """A request.

    Attributes:
        method: of HTTP.
        path: behind the endpoint, or a whole URL that the store gave.
        query: parameters of the URL.
        headers: of HTTP.
        body: buffers that are joined when it is sent.
        is_continued: whether the answer must ask for more of an upload (308), not end it.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: tuple[Buffer, ...] = ()
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class GsAnswer:
    """A response.

    Attributes:
        status: of HTTP: that of a success.
        headers: any spelling finds them.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


class GsRequests:
    """A client of one bucket. Made by `open`.

    Attributes:
        bucket: its name.
        gate: what requests pass.
    """

    def __init__(
        self,
        bucket: str,
        endpoint: str,
        credentials: Credentials | None,
        *,
        gate: RequestGate,
        threads: Threads,
    ) -> None:
        options = gate.options
        self.bucket = bucket
        self.gate = gate
        self._endpoint = endpoint.rstrip("/")
        self._credentials = credentials
        self._threads = threads
        self._http = urllib3.PoolManager(
            maxsize=options.max_requests_in_flight,
            retries=False,
            timeout=urllib3.Timeout(
                connect=options.connect_timeout_ms / 1000, read=options.request_timeout_ms / 1000
            ),
        )
        # A timeout of urllib3 counts from the last byte: the gate's ends the whole request.
        self._http.pool_classes_by_scheme = dict(WATCHED_POOLS)

    @classmethod
    async def open(cls, bucket: str, endpoint: str, gate: RequestGate) -> GsRequests:
        """Find credentials and make the client; nothing is asked of the store.

        Raises:
            RefusedError: there are no credentials.
        """
        threads = Threads("tier-gs", gate.options.max_requests_in_flight)
        credentials: Credentials | None = None
        if urlsplit(endpoint).scheme != "http":
            try:
                credentials, _ = await threads.run(partial(google.auth.default, scopes=[SCOPE]))
            except GoogleAuthError as error:
                await threads.close()
                raise RefusedError(gate.store, "", str(error)) from error
        return cls(bucket, endpoint, credentials, gate=gate, threads=threads)

    def object_path(self, path: str) -> str:
        """Path of an object, or of the bucket's objects for ""."""
        return f"/storage/v1/b/{self.bucket}/o" + (f"/{quote(path, safe='')}" if path else "")

    async def run(
        self,
        operation: StoreOperation,
        key: str,
        request: GsRequest,
        *,
        read: Callable[[GsAnswer], Result],
        download_bytes: int = 0,
    ) -> Result:
        """Do one request, repeated by the gate.

        Args:
            operation: what it does.
            key: the object it is about.
            request: what is sent.
            read: makes the result out of the answer, in a thread; what it raises for an answer
                that is not what was asked for fails the request.
            download_bytes: length of the body it receives, 0 if that is not known.
        """

        def send() -> Result:
            return read(self._send(key, request))

        call = partial(self._threads.run, send)
        upload_bytes = sum(map(len, request.body))
        try:
            return await self.gate.run(
                operation, key, call, upload_bytes=upload_bytes, download_bytes=download_bytes
            )
        except ObjectNotFoundError:
            # The same number says that the bucket is gone.
            bucket = GsRequest("GET", f"/storage/v1/b/{self.bucket}")
            try:
                look = partial(self._threads.run, partial(self._send, "", bucket))
                await self.gate.run(StoreOperation.HEAD, "", look)
            except ObjectNotFoundError as error:
                raise StoreMissingError(self.gate.store, "", error.reason) from error
            raise

    async def checksum(self, part: Part, before: int = 0) -> int:
        """The CRC32C of a part that follows what `before` is the CRC32C of."""
        return await self._threads.run(
            lambda: google_crc32c.extend(before, part.joined()),
        )

    def _send(self, key: str, request: GsRequest) -> GsAnswer:
        url = request.path if "://" in request.path else self._endpoint + request.path
        if request.query:
            url += f"?{urlencode(request.query)}"
        headers = dict(request.headers)
        try:
            if self._credentials is not None:
                tokens = TokenRequest(self._http)  # type: ignore[no-untyped-call]
                self._credentials.before_request(  # type: ignore[no-untyped-call]
                    tokens, request.method, url, headers
                )
            answer = self._http.request(
                request.method,
                url,
                headers=headers,
                body=b"".join(request.body) if request.body else None,
                redirect=False,
            )
        except (ConnectTimeoutError, ReadTimeoutError) as error:
            raise StoreTimeoutError(self.gate.store, key, str(error)) from error
        except (HTTPError, TransportError) as error:
            raise StoreUnavailableError(self.gate.store, key, str(error)) from error
        except GoogleAuthError as error:
            raise RefusedError(self.gate.store, key, str(error)) from error
        # A redirect is none of the store's: some proxy wants to show a page.
        if not (answer.status == 308 if request.is_continued else 200 <= answer.status < 300):
            raise self._error(key, answer.status, answer.data)
        return GsAnswer(answer.status, answer.headers, answer.data)

    def _error(self, key: str, status: int, body: bytes) -> StoreError:
        text = body[:500].decode(errors="replace").strip()
        reason, message = "", text
        if text.startswith("{"):
            try:
                told = json.loads(body)["error"]
                message = told["message"]
                reason = told.get("errors", [{}])[0].get("reason", "")
            except (ValueError, LookupError, TypeError):
                message = text
        kind = _STATUSES.get(status, StoreUnavailableError)
        if reason in _TOO_FAST:
            kind = ThrottledError
        return kind(self.gate.store, key, f"{status} {message}")

    async def close(self) -> None:
        """End threads and connections."""
        self.gate.close()
        await self._threads.close()
        self._http.clear()


def crc32c_text(crc32c: int) -> str:
    """A CRC32C as the interface writes it."""
    return b64encode(crc32c.to_bytes(4, "big")).decode()


def crc32c_of(body: bytes) -> str:
    """The CRC32C of a body as the interface writes it."""
    return crc32c_text(google_crc32c.value(body))
