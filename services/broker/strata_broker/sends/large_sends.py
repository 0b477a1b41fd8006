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
from strata_broker.sends.outgoing import MessagePreparer, ParsedSend
from strata_broker.sends.send_owner import SendOwner
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout
from strata_runtime.tracing import Span


class StagesPrepared(SendOwner, Protocol):
    """The part of `Sender` that large sends need."""

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
        deadline_s: float,
        span: Span | None,
        on_answered: Callable[[], None] | None = None,
    ) -> None:
        """Stage messages that are prepared.

        Args:
            topic: of all messages.
            call: is answered when they are stored.
            parsed: its request.
            outgoing: its messages.
            started_s: when it came, by the monotonic clock.
            deadline_s: when its client no longer waits, by the same clock.
            span: of the send, if it is traced.
            on_answered: called when the call is answered; not if this raises.

        Raises:
            RequestError: nothing was staged.
        """


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

    def take(
        self,
        call: HotCall,
        parsed: ParsedSend,
        client_id: str,
        started_s: float,
        deadline_s: float,
    ) -> None:
        """Take a large request of a client; it is answered or refused later.

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
                self._send(call, parsed, client_id, started_s, deadline_s),
                lambda _: sender.refuse(call, count, unexpected(), started_s),
            ).add_done_callback(lambda _: self._bytes.give_back(size_bytes))
        except BaseException:
            self._bytes.give_back(size_bytes)
            raise

    async def _send(
        self,
        call: HotCall,
        parsed: ParsedSend,
        client_id: str,
        started_s: float,
        deadline_s: float,
    ) -> None:
        async with self._turns.of(client_id, len(call.request)):
            if call.done():
                # The client has gone: nothing is stored.
                return
            if self._sender.clock.monotonic_s() >= deadline_s:
                # Nobody waits for it any more: it is not hashed.
                late = errors.timed_out()
                self._sender.refuse(call, len(parsed.message_ids), late, started_s)
                return
            answered = asyncio.Event()
            try:
                await self._prepare_and_stage(call, parsed, started_s, deadline_s, answered.set)
            except RequestError as bad:
                self._sender.refuse(call, len(parsed.message_ids), bad, started_s)
                return
            with suppress(TimeoutError):
                async with Timeout(self._turn_s):
                    await answered.wait()

    async def _prepare_and_stage(
        self,
        call: HotCall,
        parsed: ParsedSend,
        started_s: float,
        deadline_s: float,
        on_answered: Callable[[], None],
    ) -> None:
        topic = self._sender.sendable(parsed)
        span = self._sender.span_of(call, parsed)
        try:
            outgoing = await asyncio.to_thread(self._preparer.prepare_all, parsed, topic)
            self._sender.stage(
                topic,
                call,
                parsed,
                outgoing=outgoing,
                started_s=started_s,
                deadline_s=deadline_s,
                span=span,
                on_answered=on_answered,
            )
        except RequestError as bad:
            if span is not None:
                span.end(error=bad.text)
            raise
