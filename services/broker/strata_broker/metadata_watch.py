"""Talks to the nameserver: follows its watch for the broker's life, forwards writes.

A lost watch is resumed from the last revision taken in; what was taken in stays true meanwhile,
so a broker serves on with no nameserver reachable (rule 16).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError, Channel
from strata_broker.backoff import Backoff, Random
from strata_broker.config import MetadataSection
from strata_broker.metadata import MetadataView

_SERVICE = "/strata.meta.v1.MetaService/"


Response = TypeVar("Response", bound=Message)


class MetaRefusedError(Exception):
    """The nameserver answered, but not OK.

    Attributes:
        outcome: why.
        reason: one line for people.
    """

    def __init__(self, outcome: meta_pb2.MetaOutcome.ValueType, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class MetaClient:
    """Calls the nameserver; repeats while it has no leader."""

    def __init__(self, channel: Channel, config: MetadataSection, random: Random) -> None:
        self._channel = channel
        self._config = config
        self._random = random

    async def call(self, rpc: str, request: Message, response_type: type[Response]) -> Response:
        """Call a unary RPC of MetaService.

        Raises:
            MetaRefusedError: the outcome is not OK.
            AngeliaError: no answer within the configured time.
        """
        backoff = Backoff(self._config.first_retry_ms, self._config.max_retry_ms, self._random)
        async with asyncio.timeout(self._config.call_timeout_ms / 1000):
            while True:
                response = await self._channel.call(
                    _SERVICE + rpc,
                    request,
                    response_type,
                    timeout_s=self._config.call_timeout_ms / 1000,
                )
                status: meta_pb2.MetaStatus = response.status  # type: ignore[attr-defined]
                if status.outcome == meta_pb2.META_OUTCOME_OK:
                    return response
                if status.outcome != meta_pb2.META_OUTCOME_NOT_LEADER:
                    raise MetaRefusedError(status.outcome, status.reason)
                await asyncio.sleep(backoff.next_s())


class MetadataFollower:
    """Keeps a view up to date over one watch stream."""

    def __init__(
        self, channel: Channel, view: MetadataView, config: MetadataSection, random: Random
    ) -> None:
        self._channel = channel
        self._view = view
        self._backoff = Backoff(config.first_retry_ms, config.max_retry_ms, random)

    async def run(self) -> None:
        """Follow until cancelled; a lost stream is opened again from the last revision."""
        while True:
            request = meta_pb2.WatchRequest(from_revision=self._view.revision)
            with suppress(AngeliaError):
                async for response in self._channel.stream(
                    _SERVICE + "Watch", request, meta_pb2.WatchResponse
                ):
                    self._view.apply(response)
                    self._backoff.reset()
            await asyncio.sleep(self._backoff.next_s())
