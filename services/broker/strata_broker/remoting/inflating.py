"""Bodies that producers compressed: inflated here, so that every consumer can read them.

Java producers compress bodies from 4 KiB on, with zlib unless told otherwise. A body is never
inflated beyond the largest body of a message, whatever it claims (rule 34).
"""

from __future__ import annotations

import asyncio
import zlib

from strata_broker.base import errors
from strata_broker.remoting.answers import RemotingRefusal
from strata_mq.requests import Code, RequestError
from strata_remoting import ResponseCode
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

# Bits 8 to 10 of the system flag.
_KINDS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_KIND_SHIFT, _KIND_MASK = 8, 7
_ZLIB = "zlib"


class BodyInflater:
    """See the module docstring.

    Args:
        max_body_bytes: of a message.
        max_bytes: of bodies that are being inflated; each counts as the largest one.
        metrics: how much is in use.
    """

    def __init__(self, max_body_bytes: int, max_bytes: int, metrics: Metrics) -> None:
        self._max_body_bytes = max_body_bytes
        self._limit = Limit(
            "inflated bodies", max(max_bytes, max_body_bytes), "bytes", metrics=metrics
        )

    async def inflate(self, body: bytes, system_flag: int) -> bytes:
        """Return the body behind a compressed one.

        Raises:
            RequestError: TOO_MANY_REQUESTS; MESSAGE_BODY_TOO_LARGE.
            RemotingRefusal: it was compressed in an unknown way, or is damaged.
        """
        kind = _KINDS.get(system_flag >> _KIND_SHIFT & _KIND_MASK, "unknown")
        if kind != _ZLIB:
            raise RemotingRefusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body is compressed with {kind}; only zlib is supported",
            )
        if not self._limit.try_take(self._max_body_bytes):
            raise errors.too_many_requests()
        try:
            return await asyncio.to_thread(_inflate, body, self._max_body_bytes)
        finally:
            self._limit.give_back(self._max_body_bytes)


def _inflate(body: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise RemotingRefusal(
            ResponseCode.MESSAGE_ILLEGAL, f"the body cannot be inflated: {error}"
        ) from None
    if len(inflated) > most:
        raise RequestError(
            Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}"
        )
    if not inflater.eof:
        raise RemotingRefusal(ResponseCode.MESSAGE_ILLEGAL, "the compressed body is cut off")
    return inflated
