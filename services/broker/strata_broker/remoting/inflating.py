"""Bodies that producers compressed: inflated here, so that every consumer can read them.

Java producers compress bodies from 4 KiB on: with zlib, and since RocketMQ 5 with lz4 or zstd where
they are told so. Messages are stored as they were before that.
"""

from __future__ import annotations

import asyncio

from strata_broker.base import errors
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.inflation import InflationError, TooLargeError, inflated
from strata_mq.requests import Code, RequestError
from strata_remoting import ResponseCode
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


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
        most = self._max_body_bytes
        if not self._limit.try_take(most):
            raise errors.too_many_requests()
        try:
            return await asyncio.to_thread(inflated, body, system_flag, most)
        except InflationError as bad:
            raise RemotingRefusal(ResponseCode.MESSAGE_ILLEGAL, str(bad)) from None
        except TooLargeError:
            raise RequestError(
                Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}"
            ) from None
        finally:
            self._limit.give_back(most)
