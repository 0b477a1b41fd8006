"""Objects in an S3 bucket, through boto3 on a bounded pool of threads of its own.

boto3 supports every source of credentials and every store's spelling. Its own retries are off: the
gate retries, so that the counters see each request. A body of one part is one request, a longer
body a multipart upload. Buckets are not created here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.drivers.bodies import Part, chained, parts_in
from strata_tier.store.drivers.ranges import length_to_ask
from strata_tier.store.drivers.s3_errors import UploadGoneError, of_code
from strata_tier.store.drivers.s3_requests import S3Location, S3Requests, stamp_ms
from strata_tier.store.drivers.s3_upload import MultipartUpload
from strata_tier.store.ports import (
    Body,
    CorruptTransferError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectPage,
    ObjectTooShortError,
    StoreUnavailableError,
    check_key,
)
from strata_tier.store.retrying import RequestGate, StoreOperation

MAX_DELETED_AT_ONCE = 1000


class S3Store:
    """An `ObjectStore` in a bucket. Made by `open`."""

    def __init__(self, requests: S3Requests) -> None:
        self._requests = requests
        self._client = requests.client
        self._bucket = requests.location.bucket
        self._gate = requests.gate

    @classmethod
    async def open(
        cls, location: S3Location, credentials: S3Credentials | None, gate: RequestGate
    ) -> S3Store:
        """Make a store; no request is sent yet."""
        return cls(await S3Requests.open(location, credentials, gate))

    @property
    def name(self) -> str:
        """The store's URL."""
        return self._gate.store

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        """Store an object; see the port."""
        check_key(key)
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        parts = parts_in(body, self._gate.options.part_bytes, size_bytes)
        first = await anext(parts)
        second = await anext(parts, None)
        if second is None:
            return await self._put_whole(key, first, condition)
        return await self._put_parts(key, chained((first, second), parts), condition)

    async def _put_whole(self, key: str, body: Part, condition: dict[str, Any]) -> ObjectInfo:
        path = self._requests.path(key)

        def put() -> ObjectInfo:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=path, Body=body.joined(), **condition
            )
            return ObjectInfo(key, body.size_bytes, self._requests.stored_ms(key, answer))

        return await self._requests.run(StoreOperation.PUT, key, put, upload_bytes=body.size_bytes)

    async def _put_parts(
        self, key: str, parts: AsyncIterator[Part], condition: dict[str, Any]
    ) -> ObjectInfo:
        upload = await MultipartUpload.begin(self._requests, key)
        try:
            await upload.send(parts)
            modified_ms = await upload.complete(condition)
        except UploadGoneError:
            # An earlier try may have completed it and its answer was lost.
            info = await self.head(key)
            if condition or info.size_bytes != upload.sent_bytes:
                raise
            return info
        except BaseException:
            # A cancelled upload costs money too until it is aborted.
            await asyncio.shield(upload.abort())
            raise
        return ObjectInfo(key, upload.sent_bytes, modified_ms)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Read an object; see the port."""
        check_key(key)
        length = await length_to_ask(self, key, position, length)
        if length == 0:
            return b""
        announced = length or 0
        body = await self._requests.run(
            StoreOperation.GET,
            key,
            partial(self._read, key, position, length),
            download_bytes=announced,
        )
        await self._gate.received(len(body), announced)
        return body

    def _read(self, key: str, position: int, length: int | None) -> bytes:
        wanted: dict[str, Any] = {}
        if length is not None:
            wanted["Range"] = f"bytes={position}-{position + length - 1}"
        answer = self._client.get_object(
            Bucket=self._bucket, Key=self._requests.path(key), **wanted
        )
        # `with answer["Body"]` would give the raw stream, without checks of length and CRC.
        with closing(answer["Body"]) as stream:
            body = stream.read()
        if length is None:
            return body
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        size = answer.get("ContentRange", "").rpartition("/")[2]
        if status == 206 and size.isdigit() and int(size) < position + length:
            raise ObjectTooShortError(self.name, key, f"ends at {size}, not {position + length}")
        if status != 206 or len(body) != length:
            raise CorruptTransferError(
                self.name, key, f"{len(body)} bytes (status {status}) for {wanted['Range']}"
            )
        return body

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object; see the port."""
        check_key(key)

        def head() -> ObjectInfo:
            answer = self._client.head_object(Bucket=self._bucket, Key=self._requests.path(key))
            return ObjectInfo(key, answer["ContentLength"], stamp_ms(answer["LastModified"]))

        try:
            return await self._requests.run(StoreOperation.HEAD, key, head)
        except ObjectNotFoundError:
            # An answer to HEAD has no body: a missing bucket looks the same.
            await self.list(key, limit=1)
            raise

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects; see the port."""
        start: dict[str, Any] = {"StartAfter": self._requests.path(after)} if after else {}
        page = partial(self._page, prefix, limit, start)
        return await self._requests.run(StoreOperation.LIST, "", page)

    def _page(self, prefix: str, limit: int, start: dict[str, Any]) -> ObjectPage:
        answer = self._client.list_objects_v2(
            Bucket=self._bucket, Prefix=self._requests.path(prefix), MaxKeys=limit, **start
        )
        skipped = len(self._requests.location.prefix)
        infos = tuple(
            ObjectInfo(found["Key"][skipped:], found["Size"], stamp_ms(found["LastModified"]))
            for found in answer.get("Contents", ())
        )
        if answer["IsTruncated"] and not infos:
            raise StoreUnavailableError(self.name, prefix, "an empty page that is not the last")
        return ObjectPage(infos, infos[-1].key if answer["IsTruncated"] else None)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; see the port."""
        for key in keys:
            check_key(key)
        if not self._requests.location.dialect.delete_many:
            for key in keys:
                await self._delete_one(key)
            return
        rest = iter(keys)
        while batch := list(islice(rest, MAX_DELETED_AT_ONCE)):
            await self._requests.run(StoreOperation.DELETE, "", partial(self._delete_many, batch))

    def _delete_many(self, keys: Sequence[str]) -> None:
        answer = self._client.delete_objects(
            Bucket=self._bucket,
            # It tells of each object: an answer that tells of none is not the store's.
            Delete={
                "Objects": [{"Key": self._requests.path(key)} for key in keys],
                "Quiet": False,
            },
        )
        if not answer.get("Deleted") and not answer.get("Errors"):
            raise StoreUnavailableError(self.name, keys[0], "the answer tells of no object")
        for failed in answer.get("Errors", ()):
            code = failed.get("Code", "")
            if code != "NoSuchKey":
                key = failed.get("Key", "")
                raise of_code(code, 0, failed.get("Message", ""), self.name, key)

    async def _delete_one(self, key: str) -> None:
        def delete() -> None:
            answer = self._client.delete_object(Bucket=self._bucket, Key=self._requests.path(key))
            status = answer["ResponseMetadata"]["HTTPStatusCode"]
            if status != 204:
                raise StoreUnavailableError(self.name, key, f"{status} answers no deletion")

        try:
            await self._requests.run(StoreOperation.DELETE, key, delete)
        except ObjectNotFoundError:
            return

    async def remove_leftovers(self, before_ms: int) -> int:
        """Abort unfinished multipart uploads; see the port."""
        stale = await self._requests.run(
            StoreOperation.LIST, "", partial(self._stale_uploads, before_ms)
        )
        for names in stale:
            abort = partial(self._client.abort_multipart_upload, **names)
            await self._requests.run(StoreOperation.ABORT_UPLOAD, "", abort)
        return len(stale)

    def _stale_uploads(self, before_ms: int) -> Sequence[dict[str, Any]]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._requests.location.prefix
        )
        return [
            {"Bucket": self._bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            for page in pages
            for upload in page.get("Uploads", ())
            if stamp_ms(upload["Initiated"]) < before_ms
        ]

    async def close(self) -> None:
        """End threads and connections."""
        await self._requests.close()
