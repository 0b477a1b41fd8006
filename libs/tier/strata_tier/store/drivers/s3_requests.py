"""One request to S3: through the gate, in a thread, its failure as the port's error."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.drivers.s3_dialects import S3Dialect
from strata_tier.store.drivers.s3_errors import translated
from strata_tier.store.drivers.s3_watched import watch_connections
from strata_tier.store.drivers.threads import Threads
from strata_tier.store.ports import CorruptTransferError, StoreError, StoreUnavailableError
from strata_tier.store.retrying import RequestGate, StoreOperation

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class S3Location:
    """Where the objects are.

    Attributes:
        bucket: it must exist.
        prefix: stands before every key; empty or ending with "/".
        endpoint: `http://HOST:PORT` of a store that is not Amazon's.
        region: name of the region.
        dialect: how the store differs.
    """

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    dialect: S3Dialect


class S3Requests:
    """A client of one bucket. Made by `open`.

    Attributes:
        client: boto3's; its methods block and are called in `run` only.
        location: the bucket.
        gate: what requests pass.
    """

    def __init__(
        self, client: S3Client, location: S3Location, gate: RequestGate, *, threads: Threads
    ) -> None:
        self.client = client
        self.location = location
        self.gate = gate
        self._threads = threads

    @classmethod
    async def open(
        cls, location: S3Location, credentials: S3Credentials | None, gate: RequestGate
    ) -> S3Requests:
        """Make the client; no request is sent yet."""
        threads = Threads("tier-s3", gate.options.max_requests_in_flight)
        # Reading boto3's service descriptions takes a tenth of a second.
        client = await threads.run(partial(_client, location, credentials, gate))
        return cls(client, location, gate, threads=threads)

    def path(self, key: str) -> str:
        """The key as the bucket knows it."""
        return self.location.prefix + key

    async def run(
        self,
        operation: StoreOperation,
        key: str,
        call: Callable[[], Result],
        *,
        upload_bytes: int = 0,
        download_bytes: int = 0,
    ) -> Result:
        """Do one request, repeated by the gate.

        Args:
            operation: what it does.
            key: the object it is about.
            call: blocks, and may raise what boto3 raises; makes the result out of the answer, so
                that the gate sees an answer that nobody expects.
            upload_bytes: length of the body it sends.
            download_bytes: length of the body it receives, 0 if that is not known.
        """

        async def once() -> Result:
            try:
                return await self._threads.run(call)
            except (BotoCoreError, ClientError) as error:
                raise self.error(error, key) from error
            except HTTPError as error:
                # From reading a body: boto3 does not wrap all of urllib3's.
                raise CorruptTransferError(self.gate.store, key, str(error)) from error

        return await self.gate.run(
            operation, key, once, upload_bytes=upload_bytes, download_bytes=download_bytes
        )

    def stored_ms(self, key: str, answer: Mapping[str, Any]) -> int:
        """When the store took an object, by its own clock; 0 if it did not say a time.

        Raises:
            StoreUnavailableError: the answer names no object: a proxy gave it, not the store.
        """
        if not answer.get("ETag"):
            raise StoreUnavailableError(self.gate.store, key, "unexpected answer: it has no ETag")
        return _answered_ms(answer)

    def error(self, error: BotoCoreError | ClientError, key: str) -> StoreError:
        """The port's error."""
        return translated(error, self.gate.store, key)

    async def close(self) -> None:
        """End the threads and connections."""
        self.gate.close()
        await self._threads.close()
        self.client.close()


def stamp_ms(moment: datetime) -> int:
    """A time that boto3 gave, in Unix milliseconds."""
    return round(moment.timestamp() * 1000)


def _answered_ms(answer: Mapping[str, Any]) -> int:
    """When the store gave this answer, by its own clock; 0 if it did not say a time."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return stamp_ms(parsedate_to_datetime(date))
    except (ValueError, OverflowError):
        return 0


def _client(location: S3Location, credentials: S3Credentials | None, gate: RequestGate) -> S3Client:
    options, dialect = gate.options, location.dialect
    wanted: Any = "when_supported" if dialect.checksums else "when_required"
    # A session of its own: boto3's default one is shared by the process and not thread-safe.
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=location.endpoint,
        region_name=location.region,
        aws_access_key_id=credentials.access_key if credentials else None,
        aws_secret_access_key=credentials.secret_key if credentials else None,
        aws_session_token=credentials.session_token if credentials else None,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": dialect.addressing_style},
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=options.connect_timeout_ms / 1000,
            read_timeout=options.request_timeout_ms / 1000,
            max_pool_connections=options.max_requests_in_flight,
            tcp_keepalive=True,
            request_checksum_calculation=wanted,
            response_checksum_validation=wanted,
        ),
    )
    # A timeout of botocore's counts from the last byte: the gate's ends the whole request.
    watch_connections(client)
    if dialect.delete_digest:
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_digest)
    return client


def _add_digest(request: Any, **_: object) -> None:
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = b64encode(digest).decode()
