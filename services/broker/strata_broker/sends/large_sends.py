"""Large sends: hashed outside the event loop, a few megabytes at a time, clients in turns.

The body of a large message takes milliseconds to hash and to write. So that small sends beside it
find the event loop and the log free, large requests wait here before they are prepared, and only
so many bytes of them are hashed or written at the same time. The bytes that wait are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from strata_broker.base import errors
from strata_broker.base.config import SendSection
from strata_broker.base.failures import unexpected
from strata_broker.base.owner_turns import OwnerTurns
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller
from strata_broker.sends.outgoing import MessagePreparer, ParsedSend
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_runtime.tracing import Span


class StagesPrepared(Protocol):
    """The sender, as `LargeSends` sees it."""

    requests: RequestTasks

    def sendable(self, parsed: ParsedSend) -> TopicRow:
        """Return the topic if it can be sent to.

        Raises:
            RequestError: why not.
        """

    def span_of(self, call: HotCall, parsed: ParsedSend) -> Span | None:
        """Begin the span of a send, if it is traced."""

    def stage(
        self,
        topic: TopicRow,
        call: HotCall,
        parsed: ParsedSend,
        *,
        outgoing: Sequence[OutgoingMessage],
        started_s: float,
        span: Span | None,
    ) -> None:
        """Stage messages that are prepared.

        Raises:
            RequestError: nothing was staged.
        """

    def refuse(
        self, call: HotCall, message_count: int, failure: RequestError, started_s: float
    ) -> None:
        """Answer with one error for the request and each of its messages."""


class LargeSends:
    """See the module docstring.

    Args:
        sender: stages them.
        preparer: used outside the event loop.
        config: from which size on, and how much at once.
        metrics: where use and waiting are shown.
    """

    def __init__(
        self,
        sender: StagesPrepared,
        preparer: MessagePreparer,
        config: SendSection,
        *,
        metrics: Metrics,
    ) -> None:
        self._sender = sender
        self._preparer = preparer
        self._least_bytes = config.large_request_bytes
        self._turn_s = config.large_turn_ms / 1000
        self._turns = OwnerTurns(
            "large sends",
            config.max_large_bytes_at_once,
            max_hold_ms=config.large_turn_ms,
            metrics=metrics,
        )
        self._bytes = Limit("large sends", config.max_large_bytes_waiting, "bytes", metrics=metrics)

    def is_large(self, call: HotCall) -> bool:
        """Whether a request has to take its turn."""
        return len(call.request) >= self._least_bytes

    def take(self, call: HotCall, parsed: ParsedSend, caller: Caller, started_s: float) -> None:
        """Take a large request; it is answered or refused later.

        Raises:
            RequestError: TOO_MANY_REQUESTS: too much waits.
            TooManyTasksError: likewise.
        """
        size_bytes = len(call.request)
        if not self._bytes.try_take(size_bytes):
            raise errors.too_many_requests()
        sender, count = self._sender, len(parsed.message_ids)
        try:
            sender.requests.spawn(
                "send large messages",
                self._send(call, parsed, caller.client_id, started_s),
                lambda _: sender.refuse(call, count, unexpected(), started_s),
            ).add_done_callback(lambda _: self._bytes.give_back(size_bytes))
        except BaseException:
            self._bytes.give_back(size_bytes)
            raise

    async def _send(
        self, call: HotCall, parsed: ParsedSend, client_id: str, started_s: float
    ) -> None:
        async with self._turns.of(client_id, len(call.request)):
            if call.done():
                # The client has gone: nothing is stored.
                return
            answered = asyncio.Event()
            try:
                await self._prepare_and_stage(_WatchedCall(call, answered.set), parsed, started_s)
            except RequestError as bad:
                self._sender.refuse(call, len(parsed.message_ids), bad, started_s)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._turn_s):
                    await answered.wait()

    async def _prepare_and_stage(self, call: HotCall, parsed: ParsedSend, started_s: float) -> None:
        topic = self._sender.sendable(parsed)
        span = self._sender.span_of(call, parsed)
        try:
            outgoing = await asyncio.to_thread(self._preparer.prepare_all, parsed, topic)
            self._sender.stage(
                topic, call, parsed, outgoing=outgoing, started_s=started_s, span=span
            )
        except RequestError as bad:
            if span is not None:
                span.end(error=bad.text)
            raise


class _WatchedCall:
    """A call that tells when it is answered."""

    __slots__ = ("_answered", "_call", "metadata", "method", "peer", "request")

    def __init__(self, call: HotCall, answered: Callable[[], None]) -> None:
        self._call = call
        self._answered = answered
        self.method, self.peer = call.method, call.peer
        self.request, self.metadata = call.request, call.metadata

    def time_left_s(self) -> float | None:
        """See `HotCall`."""
        return self._call.time_left_s()

    def done(self) -> bool:
        """See `HotCall`."""
        return self._call.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """See `HotCall`."""
        self._call.on_gone(callback)

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """See `HotCall`."""
        self._call.complete(responses, on_not_taken)
        self._answered()

    def fail(self, status: str, reason: str) -> None:
        """See `HotCall`."""
        self._call.fail(status, reason)
        self._answered()
