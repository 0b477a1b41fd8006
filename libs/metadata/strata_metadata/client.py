"""Calls of MetaService: they find the leader and retry while there is no leader.

A try without an answer may have been carried out. So a call that somebody wants (not a report) has
an id, the same at every try, and a repeat gets the answer of the first try (docs/adr/0080).
Nameservers of an earlier version do not know ids: there a repeated creation can get ALREADY_EXISTS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from secrets import token_bytes
from typing import TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import (
    BAD_REQUEST,
    DEADLINE_EXCEEDED,
    INTERNAL,
    TOO_LARGE,
    UNKNOWN_METHOD,
    AngeliaError,
)
from strata_metadata.channels import ChannelFactory, Channels
from strata_metadata.enum_names import name_of
from strata_metadata.errors import MetaRefused
from strata_metadata.metrics import METRICS
from strata_metadata.options import MetadataClientOptions
from strata_runtime.backoff import Backoff
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout

SERVICE = "/strata.meta.v1.MetaService/"

Response = TypeVar("Response", bound=Message)
Request = TypeVar("Request", bound=Message)

_CALL_ID = "call_id"
_CALL_ID_BYTES = 16

_FINAL = frozenset({TOO_LARGE, BAD_REQUEST, UNKNOWN_METHOD, INTERNAL})
"""Failures that another nameserver would repeat."""


class _Elsewhere(Exception):
    """This nameserver does not carry the call out; another one may."""

    def __init__(self, reason: str, leader_endpoint: str = "") -> None:
        super().__init__(reason)
        self.leader_endpoint = leader_endpoint


class MetadataClient:
    """Calls whichever nameserver leads.

    Args:
        endpoints: of all nameservers; the order does not matter.
        channel_factory: makes a channel to an endpoint; the channels are owned here.
        options: times and limits.
        random: a number in [0, 1), spreads pauses.
        metrics: tries.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        channel_factory: ChannelFactory,
        options: MetadataClientOptions,
        *,
        random: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        if not endpoints:
            raise ValueError("a metadata client needs at least one nameserver")
        metrics.declare(METRICS)
        self._endpoints = tuple(endpoints)
        self._channels = Channels(channel_factory, options.max_channels)
        self._options = options
        self._random = random
        self._tries_total = metrics.counter("strata_metadata_tries_total")
        # Where the next call goes first: the last one that answered as the leader.
        self._target = self._endpoints[0]

    async def call(
        self,
        rpc: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Call a unary RPC whose response has a `status`.

        Args:
            rpc: its name, for instance "CreateTopic".
            request: sent again as it is at every try, with an id if it has none.
            response_type: of the RPC.
            timeout_s: all tries together; None: `call_timeout_ms`.

        Raises:
            MetaRefused: the outcome is neither OK nor NOT_LEADER.
            AngeliaError: no leader answered within the time (DEADLINE_EXCEEDED), or the call
                would fail anywhere (TOO_LARGE, BAD_REQUEST, UNKNOWN_METHOD, INTERNAL).
        """
        request = _named(request)
        total_s = timeout_s or self._options.call_timeout_ms / 1_000
        # One that does not answer must leave time for another.
        try_s = min(self._options.try_timeout_ms / 1_000, total_s / 2)
        failure = "no answer"
        target = self._target
        backoff = Backoff(self._options.first_retry_ms, self._options.max_retry_ms, self._random)
        asked: set[str] = set()
        try:
            async with Timeout(total_s):
                while True:
                    target = self._target
                    asked.add(target)
                    try:
                        return await self._try(target, rpc, request, response_type, try_s)
                    except _Elsewhere as elsewhere:
                        failure = f"{target}: {elsewhere}"
                        self._target = self._next(target, elsewhere.leader_endpoint, asked)
                    if self._target in asked:
                        asked.clear()
                        await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            if self._target == target:
                # The next call must not wait for the same silence.
                self._target = self._next(target, "", asked)
            raise AngeliaError(DEADLINE_EXCEEDED, f"{rpc}: {failure}") from None

    async def close(self) -> None:
        """Close all channels; calls under way fail with UNAVAILABLE."""
        await self._channels.close()

    async def _try(
        self,
        target: str,
        rpc: str,
        request: Message,
        response_type: type[Response],
        timeout_s: float,
    ) -> Response:
        """Ask one nameserver.

        Raises:
            _Elsewhere: it is not there, or not the leader.
            MetaRefused, AngeliaError: as `call` says.
        """
        try:
            response = await self._channels.get(target).call(
                SERVICE + rpc,
                request,
                response_type,
                timeout_s=timeout_s,
            )
        except AngeliaError as error:
            self._tries_total.add(1, {"result": error.code})
            if error.code in _FINAL:
                raise
            raise _Elsewhere(str(error)) from error
        status: meta_pb2.MetaStatus = response.status  # type: ignore[attr-defined]
        name = name_of(meta_pb2.MetaOutcome, status.outcome).removeprefix("META_OUTCOME_").lower()
        self._tries_total.add(1, {"result": name})
        if status.outcome == meta_pb2.META_OUTCOME_OK:
            return response
        if status.outcome == meta_pb2.META_OUTCOME_NOT_LEADER:
            raise _Elsewhere(status.reason, status.leader_endpoint)
        raise MetaRefused(status.outcome, status.reason)

    def _next(self, failed: str, hint: str, asked: set[str]) -> str:
        """Return where to go after `failed`: to the hint, else to the next one not asked yet.

        When all were asked it is one of them: the caller's sign to pause.
        """
        if self._target not in asked:
            # Another call has found the leader meanwhile.
            return self._target
        if hint and hint not in asked:
            return hint
        start = self._endpoints.index(failed) + 1 if failed in self._endpoints else 0
        rotated = (*self._endpoints[start:], *self._endpoints[:start])
        return next((endpoint for endpoint in rotated if endpoint not in asked), rotated[0])


def _named(request: Request) -> Request:
    """Return a request with an id, so that a repeat of its call is known as one; most have none."""
    if _CALL_ID not in request.DESCRIPTOR.fields_by_name or getattr(request, _CALL_ID):
        return request
    named = type(request)()
    named.CopyFrom(request)
    setattr(named, _CALL_ID, token_bytes(_CALL_ID_BYTES))
    return named
