"""Follows the metadata for the life of the process, from any source that answers.

After a lost stream the follower continues after the last revision it has, at the same source or at
another. The known rows stay valid meanwhile, so users of the sink keep serving while no nameserver
can be reached (rule 16). Nameservers are asked first; fallback sources (storage nodes with durable
copies) are asked once per round, only while no nameserver answers.

Invariants: the sink is never told an older revision than before. A source that knows less is left,
and so is a source of another cluster, before anything from it is accepted (rule 32). A large
snapshot reaches the sink in parts, so that other work runs between two parts.

Nameservers that were restored to an older state (an old backup in their folders) are not followed:
their rows would reuse ids for other things. The follower reports this. Once these nameservers have
a higher revision than this process, it loads everything anew, since equal revisions are then
different changes.

A sink may have a disk, which may be full: what it could not keep is asked for again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol, cast

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId, own
from strata_angelia.ports import AngeliaError
from strata_metadata.channels import ChannelFactory, Channels
from strata_metadata.client import SERVICE
from strata_metadata.metrics import METRICS
from strata_metadata.options import MetadataFollowerOptions
from strata_runtime.backoff import Backoff
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout
from strata_state.metadata import MetadataStoreError

_MAX_CHANNELS = 64
_NAMESERVER = "nameserver"

_Responses = AsyncGenerator[meta_pb2.WatchResponse, None]
"""The stream that every channel's `stream` returns: to leave it early is to close it."""


class MetadataSink(Protocol):
    """Takes the metadata in."""

    @property
    def revision(self) -> int:
        """Revision of what was taken in; 0: nothing yet, or part of a snapshot: all must come."""

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in changes, or a snapshot; `response.revision` is the new revision.

        A snapshot may come in parts, all with `snapshot_revision`, and counts once the last part
        is here, the one with a revision: nobody may see half of one. The parts of one that breaks
        off are forgotten when another snapshot or other changes come. A response may have no
        changes. It may be kept but not changed.

        Raises:
            MetadataStoreError: nothing of it counts; all after `revision` must come again.
        """


class KnownRevision(NamedTuple):
    """The last revision that a sink was told; sources that know less are left.

    Attributes:
        revision: 0: nothing was told.
        stamp: of the sink's own revision (`WatchResponse.stamp`); 0: not known, or the sink has
            none, as a snapshot broke off.
    """

    revision: int = 0
    stamp: int = 0


NOTHING_KNOWN = KnownRevision()


class _Left(Exception):
    """The source knows less than the sink."""


class MetadataSources(NamedTuple):
    """Processes that have a copy of the metadata.

    Attributes:
        endpoints: of all nameservers.
        open_channel: makes a channel to an endpoint; the follower owns the channels.
        fallback_endpoints: called when no nameserver answers: other processes with a copy.
    """

    endpoints: Sequence[str]
    open_channel: ChannelFactory
    fallback_endpoints: Callable[[], Sequence[str]] = tuple


class MetadataFollower:
    """Keeps a sink up to date over one watch stream at a time.

    Args:
        sources: who is asked.
        sink: where the metadata goes.
        options: times.
        clock: measures how long no nameserver answered.
        random: a number in [0, 1), spreads pauses; also chooses the first nameserver.
        metrics: revision and sources.
        cluster: that the process belongs to; None: to none.
        known: what the sink was told before.
    """

    def __init__(
        self,
        sources: MetadataSources,
        sink: MetadataSink,
        *,
        options: MetadataFollowerOptions,
        clock: Clock,
        random: Callable[[], float],
        metrics: Metrics,
        cluster: ClusterId | None = None,
        known: KnownRevision = NOTHING_KNOWN,
    ) -> None:
        metrics.declare(METRICS)
        self._stamp = known.stamp
        self._endpoints = tuple(sources.endpoints)
        self._fallback_endpoints = sources.fallback_endpoints
        self._cluster = own(cluster)
        self._channels = Channels(sources.open_channel, _MAX_CHANNELS)
        self._sink = sink
        self._options = options
        self._clock = clock
        self._backoff = Backoff(options.first_retry_ms, options.max_retry_ms, random)
        # Watchers that start together spread over the nameservers.
        self._next = int(random() * len(self._endpoints))
        self._sources_total = metrics.counter("strata_metadata_sources_total")
        metrics.gauge("strata_metadata_followed_revision", lambda: self._sink.revision)
        metrics.gauge("strata_metadata_age_ms", lambda: self.age_s() * 1_000)
        self._known_revision = max(sink.revision, known.revision)
        # When a nameserver that has a leader last told anything, by monotonic time.
        self._confirmed_at_s = clock.monotonic_s()
        # Since when nameservers that have a leader know less than the sink; None: they do not.
        self._knew_less_at_s: float | None = None
        # The revision that the last of them knew in this round, and its address.
        self._knew_less: tuple[str, int] | None = None
        self._trouble = ""
        # Why the sink could not keep what came last; empty: it could.
        self._sink_trouble = ""
        self._full_nameservers: frozenset[str] = frozenset()
        self._logger = get_logger("metadata")

    @property
    def trouble(self) -> str:
        """Why nameservers that answer are not followed, for people; empty: they are."""
        return self._trouble

    @property
    def full_nameservers(self) -> frozenset[str]:
        """Node ids of the nameservers whose disk is full, as one of them said last."""
        return self._full_nameservers

    def age_s(self) -> float:
        """Return the time since a nameserver with a majority confirmed what the sink has."""
        return self._clock.monotonic_s() - self._confirmed_at_s

    async def run(self) -> None:
        """Follow until cancelled."""
        heard_at_s = self._clock.monotonic_s()
        try:
            while True:
                self._knew_less = None
                for _ in self._endpoints:
                    endpoint = self._endpoints[self._next]
                    # A source that was lost is asked again last.
                    self._next = (self._next + 1) % len(self._endpoints)
                    if await self._follow(endpoint, _NAMESERVER):
                        heard_at_s = self._clock.monotonic_s()
                        break
                else:
                    self._judge_round()
                    silence_ms = (self._clock.monotonic_s() - heard_at_s) * 1_000
                    if silence_ms >= self._options.fallback_after_ms:
                        await self._ask_fallbacks()
                await asyncio.sleep(self._backoff.next_s())
        finally:
            await self._channels.close()

    def _judge_round(self) -> None:
        """No nameserver was of use: tell it when that is because they know less for long."""
        if self._knew_less is None:
            return
        now_s = self._clock.monotonic_s()
        if self._knew_less_at_s is None:
            self._knew_less_at_s = now_s
        if (now_s - self._knew_less_at_s) * 1_000 < self._options.went_back_after_ms:
            return
        endpoint, revision = self._knew_less
        trouble = (
            f"nameserver {endpoint} leads with revision {revision}, {self._known_revision} is known"
            " here: it was put back to an older state and is not followed"
        )
        if not self._trouble:
            self._logger.error("nameservers went back", what=trouble)
        self._trouble = trouble

    def _tell_diverged(self, endpoint: str, revision: int) -> None:
        what = (
            f"revision {revision} is another change at {endpoint} than here: the nameservers were "
            "put back to an older state and have gone on; all metadata is taken in anew"
        )
        self._logger.error("nameservers went back", what=what)

    async def _ask_fallbacks(self) -> None:
        """Take in what the fallback sources know; the newest may be any of them."""
        for endpoint in self._fallback_endpoints():
            await self._follow(endpoint, "fallback", once=True)

    async def _follow(self, endpoint: str, kind: str, *, once: bool = False) -> bool:
        """Take in what a source tells until it is lost; return whether it was of use."""
        heard = used = False
        # If nameservers went back, the same revision is another change.
        anew = self._trouble and kind == _NAMESERVER
        from_revision = 0 if anew else self._sink.revision
        request = meta_pb2.WatchRequest(
            from_revision=from_revision,
            cluster_id=self._cluster.value,
            from_stamp=self._stamp if from_revision else 0,
        )
        stream = self._channels.get(endpoint).stream(
            SERVICE + "Watch", request, meta_pb2.WatchResponse
        )
        try:
            async with aclosing(cast(_Responses, stream)) as responses:
                while True:
                    response = await self._next_response(responses, first=not heard)
                    heard = True
                    self._cluster.check(response.cluster_id, endpoint)
                    self._check_revision(response, endpoint, kind)
                    if response.diverged:
                        self._tell_diverged(endpoint, from_revision)
                    self._give(response)
                    if response.is_fresh and kind == _NAMESERVER:
                        self._confirmed_at_s = self._clock.monotonic_s()
                        self._full_nameservers = frozenset(response.full_nameserver_ids)
                    if not response.revision:
                        continue
                    self._stamp = response.stamp
                    self._known_revision = max(self._known_revision, response.revision)
                    if kind == _NAMESERVER:
                        self._knew_less_at_s, self._trouble = None, ""
                    if not used:
                        used = True
                        self._sources_total.add(1, {"kind": kind})
                        self._backoff.reset()
                    if once:
                        return True
        except (AngeliaError, TimeoutError, StopAsyncIteration, _Left):
            return used
        except MetadataStoreError as error:
            self._tell_sink_trouble(str(error))
            # Another source would tell the same.
            return True

    def _give(self, response: meta_pb2.WatchResponse) -> None:
        """Let the sink take a response in.

        Raises:
            MetadataStoreError: it cannot keep it.
        """
        before = self._sink.revision
        self._sink.apply(response)
        if self._sink.revision != before:
            self._sink_trouble = ""

    def _tell_sink_trouble(self, reason: str) -> None:
        """Log why the sink keeps nothing, once, however often it is tried."""
        if reason != self._sink_trouble:
            self._logger.error("metadata cannot be kept, it is tried again", reason=reason)
        self._sink_trouble = reason

    async def _next_response(self, responses: _Responses, *, first: bool) -> meta_pb2.WatchResponse:
        """Return the next response.

        Raises:
            TimeoutError: the source is silent.
            AngeliaError, StopAsyncIteration: the stream ended.
        """
        options = self._options
        timeout_ms = options.first_response_timeout_ms if first else options.silence_timeout_ms
        async with Timeout(timeout_ms / 1_000):
            return await anext(responses)

    def _check_revision(self, response: meta_pb2.WatchResponse, endpoint: str, kind: str) -> None:
        """Leave a source that knows less than the sink.

        Raises:
            _Left: so it is.
        """
        revision = max(response.revision, response.snapshot_revision)
        if revision >= self._known_revision:
            return
        if response.is_fresh and kind == _NAMESERVER:
            self._knew_less = endpoint, revision
        raise _Left
