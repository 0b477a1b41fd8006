"""One multipart upload: parts side by side, each retried alone, completed or aborted.

Invariant: after `send` or `complete` raised, `abort` leaves nothing that costs money, or
`remove_leftovers` finds the parts that it could not remove.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from strata_tier.store.drivers.bodies import Part
from strata_tier.store.drivers.s3_requests import S3Requests
from strata_tier.store.drivers.sending import send_parts
from strata_tier.store.ports import StoreError
from strata_tier.store.retrying import StoreOperation

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

MAX_PARTS = 10_000
# Time that parts on their way get to end before an abort.
_ENDING_S = 5.0


class MultipartUpload:
    """An upload that has begun. Made by `begin`.

    Args:
        requests: the bucket.
        key: the object.
        upload_id: what the store calls the upload.
    """

    def __init__(self, requests: S3Requests, key: str, upload_id: str) -> None:
        self._requests = requests
        self._key = key
        self._names: dict[str, Any] = {
            "Bucket": requests.location.bucket,
            "Key": requests.path(key),
            "UploadId": upload_id,
        }
        self._sent: dict[int, CompletedPartTypeDef] = {}
        # Parts that a thread sends, also when nobody waits for them any more.
        self._on_their_way: set[Future[None]] = set()
        self.sent_bytes = 0

    @classmethod
    async def begin(cls, requests: S3Requests, key: str) -> MultipartUpload:
        """Ask the store for an upload."""
        # Said here too, or the store does not compare the parts' checksums when they are joined.
        algorithm: dict[str, Any] = (
            {"ChecksumAlgorithm": "CRC32"} if requests.location.dialect.checksums else {}
        )

        def begin() -> str:
            answer = requests.client.create_multipart_upload(
                Bucket=requests.location.bucket, Key=requests.path(key), **algorithm
            )
            return answer["UploadId"]

        upload_id = await requests.run(StoreOperation.BEGIN_UPLOAD, key, begin)
        return cls(requests, key, upload_id)

    async def send(self, parts: AsyncIterator[Part]) -> None:
        """Send parts, as many at once as the options allow; no more than these are held.

        Raises:
            StoreError: a part could not be sent.
            ValueError: there are more parts than S3 takes.
        """
        at_once = self._requests.gate.options.parts_in_flight
        self.sent_bytes = await send_parts(parts, self._send_part, at_once)

    async def _send_part(self, index: int, position: int, part: Part) -> None:
        number = index + 1
        if number > MAX_PARTS:
            raise ValueError(f"{self._key}: more than {MAX_PARTS} parts")

        def send() -> CompletedPartTypeDef:
            with self._on_its_way():
                answer = self._requests.client.upload_part(
                    **self._names, PartNumber=number, Body=part.joined()
                )
            sent: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
            if "ChecksumCRC32" in answer:
                sent["ChecksumCRC32"] = answer["ChecksumCRC32"]
            return sent

        self._sent[number] = await self._requests.run(
            StoreOperation.PUT_PART, self._key, send, upload_bytes=part.size_bytes
        )

    @contextmanager
    def _on_its_way(self) -> Iterator[None]:
        ended = Future[None]()
        self._on_their_way.add(ended)
        try:
            yield
        finally:
            self._on_their_way.discard(ended)
            ended.set_result(None)

    async def complete(self, condition: dict[str, Any]) -> int:
        """Make the parts one object; return when, in Unix milliseconds.

        Args:
            condition: further parameters, such as `IfNoneMatch`.

        Raises:
            UploadGoneError: the store knows the upload no more. A lost answer to an earlier try
                is one reason; then the object is there.
        """
        parts = [self._sent[number] for number in sorted(self._sent)]

        def complete() -> int:
            answer = self._requests.client.complete_multipart_upload(
                **self._names, MultipartUpload={"Parts": parts}, **condition
            )
            return self._requests.stored_ms(self._key, answer)

        return await self._requests.run(StoreOperation.END_UPLOAD, self._key, complete)

    async def abort(self) -> None:
        """Tell the store to forget the parts; an error leaves them to `remove_leftovers`.

        First the parts that are on their way end: S3 may keep a part that arrives with the abort.
        """
        if parts := [asyncio.wrap_future(ended) for ended in self._on_their_way.copy()]:
            await asyncio.wait(parts, timeout=_ENDING_S)
        abort = partial(self._requests.client.abort_multipart_upload, **self._names)
        try:
            await self._requests.run(StoreOperation.ABORT_UPLOAD, self._key, abort)
        except StoreError:
            return
