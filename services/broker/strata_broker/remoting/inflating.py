"""Bodies that producers compressed: inflated here, so that every consumer can read them.

Java producers compress bodies from 4 KiB on: with zlib, and since RocketMQ 5 with lz4 or zstd where
they are told so. Messages are stored as they were before that. A few bodies are inflated at once,
and clients take turns: a producer that sends many together is not refused and holds up no others.
"""

from __future__ import annotations

import asyncio

from strata_broker.base.owner_turns import OwnerTurns
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.inflation import InflationError, TooLargeError, inflated
from strata_mq.requests import Code, RequestError
from strata_remoting import ResponseCode
from strata_runtime.metrics import Metrics

# A turn ends with its body; nothing that is inflated waits for anything.
_MAX_HOLD_MS = 600_000


class BodyInflater:
    """See the module docstring. The limits of requests bound how many wait.

    Args:
        max_body_bytes: of a message.
        max_bytes: of bodies that are being inflated; each counts as the largest one.
        metrics: how much is in use.
    """

    def __init__(self, max_body_bytes: int, max_bytes: int, metrics: Metrics) -> None:
        self._max_body_bytes = max_body_bytes
        self._turns = OwnerTurns(
            "inflated bodies", max_bytes, max_hold_ms=_MAX_HOLD_MS, metrics=metrics
        )

    async def inflate(self, body: bytes, system_flag: int, client_id: str) -> bytes:
        """Return the body behind a compressed one.

        Args:
            body: compressed.
            system_flag: of its message, which names the algorithm.
            client_id: whose turn it is.

        Raises:
            RequestError: MESSAGE_BODY_TOO_LARGE.
            RemotingRefusal: it was compressed in an unknown way, or is damaged.
        """
        most = self._max_body_bytes
        try:
            async with self._turns.of(client_id, most):
                return await asyncio.to_thread(inflated, body, system_flag, most)
        except InflationError as bad:
            raise RemotingRefusal(ResponseCode.MESSAGE_ILLEGAL, str(bad)) from None
        except TooLargeError:
            raise RequestError(
                Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}"
            ) from None
