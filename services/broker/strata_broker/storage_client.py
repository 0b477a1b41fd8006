"""Finds the leader of a raft group and calls it, again and elsewhere while time is left.

Role: channels per storage node, leader hints, repeats. Invariant: a hint is only a hint; a wrong
one costs a refusal that names the right node or makes the next replica be tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError, Channel
from strata_broker import errors
from strata_broker.backoff import Backoff, Random
from strata_broker.config import StorageClientSection
from strata_broker.metadata import MetadataView
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

SERVICE = "/strata.storage.v1.StorageService/"

ChannelFactory = Callable[[Sequence[str]], Channel]
"""Makes a channel to a node from the endpoints it registered (`host:port`, `inproc:NAME`)."""

Response = TypeVar("Response", bound=Message)


class LeaderMap:
    """Which node is believed to lead each raft group."""

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        self._hints: dict[int, str] = {}

    def node_of(self, raft_group: int) -> str | None:
        """Return the node to ask; None: the raft group is unknown."""
        hint = self._hints.get(raft_group)
        if hint is not None:
            return hint
        row = self._view.raft_group(raft_group)
        if row is None or not row.replicas:
            return None
        self._hints[raft_group] = row.replicas[0].node_id
        return self._hints[raft_group]

    def learn(self, raft_group: int, asked: str, leader: str) -> None:
        """Take in a refusal by `asked`: it named the leader, or the next replica is tried."""
        if leader and leader != asked:
            self._hints[raft_group] = leader
        elif self._hints.get(raft_group, asked) == asked:
            self._hints[raft_group] = self._after(raft_group, asked)

    def _after(self, raft_group: int, asked: str) -> str:
        row = self._view.raft_group(raft_group)
        nodes = [replica.node_id for replica in row.replicas] if row else []
        if not nodes:
            return asked
        return nodes[(nodes.index(asked) + 1) % len(nodes)] if asked in nodes else nodes[0]


class StorageChannels:
    """One channel per storage node, made when first used, anew when its endpoints change."""

    def __init__(self, view: MetadataView, factory: ChannelFactory) -> None:
        self._view = view
        self._factory = factory
        self._channels: dict[str, tuple[tuple[str, ...], Channel]] = {}
        self._replaced: list[Channel] = []

    def to(self, node_id: str) -> Channel:
        """Return the channel to a node.

        Raises:
            AngeliaError: UNAVAILABLE, the node is not registered.
        """
        node = self._view.node(node_id)
        known = self._channels.get(node_id)
        if node is None:
            raise AngeliaError("unavailable", f"storage node {node_id} is not registered")
        endpoints = tuple(node.endpoints)
        if known is not None and known[0] == endpoints:
            return known[1]
        if known is not None:
            self._replaced.append(known[1])
        channel = self._factory(endpoints)
        self._channels[node_id] = (endpoints, channel)
        return channel

    async def close(self) -> None:
        """Close all channels."""
        channels = self._replaced + [channel for _, channel in self._channels.values()]
        self._replaced, self._channels = [], {}
        for channel in channels:
            await channel.close()


class StorageClient:
    """Calls that name one raft group and carry a refusal in their response."""

    def __init__(
        self,
        leaders: LeaderMap,
        channels: StorageChannels,
        config: StorageClientSection,
        clock: Clock,
        random: Random,
        metrics: Metrics,
    ) -> None:
        self._leaders = leaders
        self._channels = channels
        self._config = config
        self._clock = clock
        self._random = random
        self._retries = metrics.counter("strata_broker_storage_retries_total")

    async def call(
        self,
        raft_group: int,
        rpc: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Call a unary RPC of the raft group's leader.

        Args:
            raft_group: who it is for.
            rpc: name of the RPC.
            request: carries the same raft group.
            response_type: has a field `refusal`.
            timeout_s: time for all tries; None: `call_timeout_ms`.

        Raises:
            RequestError: refused for good, or no answer in time.
        """
        if timeout_s is None:
            timeout_s = self._config.call_timeout_ms / 1000
        deadline_s = self._clock.monotonic_s() + timeout_s
        backoff = Backoff(self._config.first_retry_ms, self._config.max_retry_ms, self._random)
        while True:
            node = self._leaders.node_of(raft_group)
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise errors.timed_out()
            if node is None:
                reason = "unknown raft group"
            else:
                try:
                    response = await self._channels.to(node).call(
                        SERVICE + rpc, request, response_type, timeout_s=left_s
                    )
                except AngeliaError as failure:
                    if failure.code not in errors.REPEATED_ANGELIA_CODES:
                        raise errors.lost(failure) from failure
                    self._leaders.learn(raft_group, node, "")
                    reason = failure.code
                else:
                    refusal: storage_pb2.Refusal = response.refusal  # type: ignore[attr-defined]
                    if refusal.outcome in (
                        storage_pb2.OUTCOME_UNSPECIFIED,
                        storage_pb2.OUTCOME_OK,
                    ):
                        return response
                    if refusal.outcome not in errors.REPEATED_OUTCOMES:
                        raise errors.refused(refusal.outcome, refusal.reason)
                    self._leaders.learn(raft_group, node, refusal.leader_node_id)
                    reason = storage_pb2.Outcome.Name(refusal.outcome)
            self._retries.add(1, {"reason": reason})
            await asyncio.sleep(min(backoff.next_s(), max(left_s, 0)))

    async def node_status(
        self, node_id: str, timeout_s: float
    ) -> storage_pb2.GetStatusResponse | None:
        """Return what a node says of its replicas; None when it does not answer."""
        try:
            return await self._channels.to(node_id).call(
                SERVICE + "GetStatus",
                storage_pb2.GetStatusRequest(),
                storage_pb2.GetStatusResponse,
                timeout_s=timeout_s,
            )
        except AngeliaError:
            return None
