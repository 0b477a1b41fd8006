"""Objects in a bucket of Google Cloud Storage.

A body of one part is one request that carries its CRC32C, which the store compares before it shows
the object. A longer body is a resumable upload: parts in order, each retried alone when it fails
(the store ignores bytes that it already has), and the CRC32C of the whole is compared at the end.
The store forgets an unfinished upload, which costs nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from strata_tier.store.drivers.bodies import Part, chained, parts_in
from strata_tier.store.drivers.gs_requests import (
    ENDPOINT,
    GsAnswer,
    GsRequest,
    GsRequests,
    crc32c_of,
    crc32c_text,
)
from strata_tier.store.drivers.ranges import length_to_ask
from strata_tier.store.drivers.sending import send_parts
from strata_tier.store.ports import (
    Body,
    CorruptTransferError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectPage,
    ObjectTooShortError,
    StoreError,
    StoreUnavailableError,
    check_key,
)
from strata_tier.store.retrying import RequestGate, StoreOperation

__all__ = ["ENDPOINT", "GsStore"]

# Parts but the last are multiples of it.
CHUNK_BYTES = 256 * 1024


class _AllButLast:
    """The parts of an upload before the one that ends it.

    Attributes:
        last: the part that was not given out; there when the others were.
        crc32c: of all parts so far.
    """

    last: Part

    def __init__(self, parts: AsyncIterator[Part], requests: GsRequests) -> None:
        self._parts = parts
        self._requests = requests
        self.crc32c = 0

    async def __aiter__(self) -> AsyncIterator[Part]:
        self.last = await anext(self._parts)
        self.crc32c = await self._requests.checksum(self.last)
        async for part in self._parts:
            yield self.last
            self.crc32c = await self._requests.checksum(part, self.crc32c)
            self.last = part


class GsStore:
    """An `ObjectStore` in a bucket. Made by `open`.

    Args:
        requests: the bucket.
        prefix: stands before every key; empty or ending with "/".
    """

    def __init__(self, requests: GsRequests, prefix: str) -> None:
        self._requests = requests
        self._prefix = prefix
        self._gate = requests.gate
        part_bytes = self._gate.options.part_bytes
        self._part_bytes = max(1, part_bytes // CHUNK_BYTES) * CHUNK_BYTES

    @classmethod
    async def open(cls, bucket: str, prefix: str, endpoint: str, gate: RequestGate) -> GsStore:
        """Make a store; nothing is asked of it yet.

        Raises:
            RefusedError: there are no credentials.
        """
        return cls(await GsRequests.open(bucket, endpoint, gate), prefix)

    @property
    def name(self) -> str:
        """The store's URL."""
        return self._gate.store

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        """Store an object; see the port."""
        check_key(key)
        condition = {"ifGenerationMatch": "0"} if if_absent else {}
        parts = parts_in(body, self._part_bytes, size_bytes)
        first = await anext(parts)
        second = await anext(parts, None)
        if second is None:
            return await self._put_whole(key, first, condition)
        upload = await self._begin(key, condition)
        most = _AllButLast(chained((first, second), parts), self._requests)

        async def send(number: int, position: int, part: Part) -> None:
            await self._send_part(key, upload, position, part)

        try:
            # In order: the store takes no other one.
            position = await send_parts(aiter(most), send, at_once=1)
            return await self._send_last(key, upload, position, most)
        except BaseException:
            await self._forget(key, upload)
            raise

    async def _put_whole(self, key: str, body: Part, condition: dict[str, str]) -> ObjectInfo:
        crc32c = crc32c_text(await self._requests.checksum(body))
        boundary = uuid.uuid4().hex
        about = json.dumps({"name": self._prefix + key, "crc32c": crc32c})
        head = (
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{about}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        request = GsRequest(
            "POST",
            f"/upload/storage/v1/b/{self._requests.bucket}/o",
            {"uploadType": "multipart", **condition},
            {"Content-Type": f"multipart/related; boundary={boundary}"},
            (head.encode(), *body.buffers, f"\r\n--{boundary}--\r\n".encode()),
        )
        read = partial(self._stored, key, crc32c)
        return await self._requests.run(StoreOperation.PUT, key, request, read=read)

    async def _begin(self, key: str, condition: dict[str, str]) -> str:
        """Begin a resumable upload; return its URL."""
        request = GsRequest(
            "POST",
            f"/upload/storage/v1/b/{self._requests.bucket}/o",
            {"uploadType": "resumable", "name": self._prefix + key, **condition},
            {"Content-Type": "application/json"},
            (b"{}",),
        )

        def location(answer: GsAnswer) -> str:
            return answer.headers["Location"]

        return await self._requests.run(StoreOperation.BEGIN_UPLOAD, key, request, read=location)

    async def _send_part(self, key: str, upload: str, position: int, part: Part) -> None:
        end = position + part.size_bytes
        headers = {"Content-Range": f"bytes {position}-{end - 1}/*"}
        request = GsRequest("PUT", upload, headers=headers, body=part.buffers, is_continued=True)

        def check(answer: GsAnswer) -> None:
            kept = answer.headers.get("Range", f"bytes=0-{end - 1}")
            if kept != f"bytes=0-{end - 1}":
                raise StoreUnavailableError(self.name, key, f"the store kept {kept} of {end} bytes")

        await self._requests.run(StoreOperation.PUT_PART, key, request, read=check)

    async def _send_last(
        self, key: str, upload: str, position: int, parts: _AllButLast
    ) -> ObjectInfo:
        part = parts.last
        end = position + part.size_bytes
        headers = {"Content-Range": f"bytes {position}-{end - 1}/{end}"}
        request = GsRequest("PUT", upload, headers=headers, body=part.buffers)
        read = partial(self._stored, key, crc32c_text(parts.crc32c))
        return await self._requests.run(StoreOperation.END_UPLOAD, key, request, read=read)

    async def _forget(self, key: str, upload: str) -> None:
        request = GsRequest("DELETE", upload)
        try:
            await self._requests.run(StoreOperation.ABORT_UPLOAD, key, request, read=_ignored)
        except StoreError:
            return  # It is forgotten after a week anyway.

    def _stored(self, key: str, crc32c: str, answer: GsAnswer) -> ObjectInfo:
        """Check what the store says it has."""
        told = answer.json()
        if told.get("crc32c", crc32c) != crc32c:
            raise CorruptTransferError(self.name, key, "the store has another checksum")
        return self._info(told)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Read an object; see the port."""
        check_key(key)
        length = await length_to_ask(self, key, position, length)
        if length == 0:
            return b""
        announced = length or 0
        ranged = {"Range": f"bytes={position}-{position + length - 1}"} if length else {}
        path = self._requests.object_path(self._prefix + key)
        request = GsRequest("GET", path, {"alt": "media"}, ranged)
        body = await self._requests.run(
            StoreOperation.GET,
            key,
            request,
            read=partial(self._body, key, position, length),
            download_bytes=announced,
        )
        await self._gate.received(len(body), announced)
        return body

    def _body(self, key: str, position: int, length: int | None, answer: GsAnswer) -> bytes:
        if length is None:
            hashes = answer.headers.get("x-goog-hash", "")
            if "crc32c=" in hashes and f"crc32c={crc32c_of(answer.body)}" not in hashes:
                raise CorruptTransferError(self.name, key, "another checksum than announced")
            return answer.body
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
        end = position + length
        if answer.status == 206 and size.isdigit() and int(size) < end:
            raise ObjectTooShortError(self.name, key, f"ends at {size}, not {end}")
        if answer.status != 206 or len(answer.body) != length:
            raise CorruptTransferError(
                self.name, key, f"{len(answer.body)} bytes (status {answer.status}) for {length}"
            )
        return answer.body

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object; see the port."""
        check_key(key)
        request = GsRequest("GET", self._requests.object_path(self._prefix + key))

        def read(answer: GsAnswer) -> ObjectInfo:
            return self._info(answer.json())

        return await self._requests.run(StoreOperation.HEAD, key, request, read=read)

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects; see the port."""
        query = {"prefix": self._prefix + prefix, "maxResults": str(min(1000, limit + 1))}
        if after:
            query["startOffset"] = self._prefix + after  # It is part of the answer.
        request = GsRequest("GET", self._requests.object_path(""), query)
        read = partial(self._page, prefix, after, limit)
        return await self._requests.run(StoreOperation.LIST, "", request, read=read)

    def _page(self, prefix: str, after: str, limit: int, answer: GsAnswer) -> ObjectPage:
        told = answer.json()
        infos = [self._info(item) for item in told.get("items", ())]
        wanted = [info for info in infos if info.key > after]
        more = "nextPageToken" in told or len(wanted) > limit
        if more and not wanted:
            raise StoreUnavailableError(self.name, prefix, "an empty page that is not the last")
        page = tuple(wanted[:limit])
        return ObjectPage(page, page[-1].key if more else None)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, one request each; see the port."""
        for key in keys:
            check_key(key)
        for key in keys:
            request = GsRequest("DELETE", self._requests.object_path(self._prefix + key))
            try:
                await self._requests.run(
                    StoreOperation.DELETE, key, request, read=partial(self._deleted, key)
                )
            except ObjectNotFoundError:
                continue

    def _deleted(self, key: str, answer: GsAnswer) -> None:
        """Check that the store answered: with nothing, as an emulator with the nothing of JSON."""
        if answer.status != 204 and answer.body.strip() != b"null":
            raise StoreUnavailableError(self.name, key, f"{answer.status} answers no deletion")

    async def remove_leftovers(self, before_ms: int) -> int:
        """Do nothing: the store forgets unfinished uploads by itself."""
        return 0

    async def close(self) -> None:
        """End threads and connections."""
        await self._requests.close()

    def _info(self, told: dict[str, Any]) -> ObjectInfo:
        modified = datetime.fromisoformat(told["updated"])
        key = told["name"].removeprefix(self._prefix)
        return ObjectInfo(key, int(told["size"]), round(modified.timestamp() * 1000))


def _ignored(answer: GsAnswer) -> None:
    """Read nothing: that the store answered with a success is all."""
