"""An upload that ends early leaves nothing that costs money."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from strata_testing import until
from strata_tier.store.drivers.bodies import Part
from strata_tier.store.drivers.s3_dialects import DIALECTS
from strata_tier.store.drivers.s3_requests import S3Location, S3Requests
from strata_tier.store.drivers.s3_upload import MultipartUpload
from strata_tier.store.drivers.threads import Threads
from strata_tier.store.retrying import RequestGate


class SlowClient:
    """Stands for boto3's client: a part is on its way until it is released."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.released = threading.Event()

    def upload_part(self, **_: Any) -> dict[str, str]:
        self.calls.append("part begins")
        assert self.released.wait(30)
        self.calls.append("part ends")
        return {"ETag": "e"}

    def abort_multipart_upload(self, **_: Any) -> None:
        self.calls.append("abort")


async def one_part() -> AsyncIterator[Part]:
    yield Part((b"bytes",), 5)


async def test_an_abort_waits_for_parts_that_nobody_waits_for() -> None:
    """A thread still sends a part of a cancelled upload: it must not come back after the abort."""
    client, threads = SlowClient(), Threads("test", 2)
    location = S3Location("bucket", "", None, "region", DIALECTS["aws"])
    requests = S3Requests(cast(Any, client), location, RequestGate("s3://test"), threads=threads)
    upload = MultipartUpload(requests, "key", "upload")
    sending = asyncio.ensure_future(upload.send(one_part()))
    await until(lambda: client.calls == ["part begins"])
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    aborting = asyncio.ensure_future(upload.abort())
    # An abort that does not wait is over by then.
    await asyncio.wait((aborting,), timeout=0.5)
    client.released.set()
    await aborting
    assert client.calls == ["part begins", "part ends", "abort"]
    assert await threads.close()
