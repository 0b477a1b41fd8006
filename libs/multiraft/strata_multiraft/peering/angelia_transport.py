"""Raft messages to other nodes over Angelia: one connection per peer, frames of many raft groups.

`send` and `send_heartbeat` never await (rule 15). All messages of one turn of the event loop leave
in one frame. A few frames are under way at a time, some of them reserved for control traffic, so
that a slow peer that receives entries still gets heartbeats. A failed frame is lost: its sender is
informed, a pause follows, and only store heartbeats try the connection again.

The transport knows neither raft nor whether a peer is alive: that is `store_liveness.py`.
Invariant: `_Peer.calls` counts exactly the tasks of `_deliver` that have not ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strata.raft.v1 import raft_pb2
from strata_angelia.ports import AngeliaError, Channel
from strata_multiraft.base.metrics import METRICS
from strata_multiraft.base.ports import Envelope, TrafficClass
from strata_multiraft.peering import envelopes as codec
from strata_multiraft.peering.peer_queue import PeerQueue
from strata_multiraft.peering.peering_options import TransportOptions
from strata_runtime.backoff import Backoff, Random
from strata_runtime.clock import Clock
from strata_runtime.metrics import Histogram, Metrics
from strata_runtime.quantiles import HistogramWindow
from strata_runtime.tasks import OnFatal, Tasks

DELIVER = "/strata.raft.v1.RaftService/Deliver"

EndpointOf = Callable[[str], str | None]
"""Where a node's RaftService is reached; None: not known now. Asked anew for every frame."""

OpenChannel = Callable[[str], Channel]
OnLost = Callable[[Sequence[Envelope]], None]


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The sender: the node, and its boot id since the process started (rule 13)."""

    node_id: str
    boot_id: int


class AngeliaTransport:
    """See `ports.Transport`.

    Args:
        identity: stands in every frame.
        endpoint_of: looks a node up.
        open_channel: makes a channel of its own for an endpoint.
        clock: for pauses.
        random: spreads pauses, see `Backoff`.
        options: limits.
        metrics: where they show.
        on_fatal: told when a task of the transport failed by a mistake in here.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        endpoint_of: EndpointOf,
        open_channel: OpenChannel,
        *,
        clock: Clock,
        random: Random,
        options: TransportOptions,
        metrics: Metrics,
        on_fatal: OnFatal,
    ) -> None:
        metrics.declare(METRICS)
        self.identity = identity
        self.options = options
        # Told of envelopes that were in a frame that failed; set by the owner.
        self.on_lost: OnLost = lambda envelopes: None
        self._endpoint_of = endpoint_of
        self._open_channel = open_channel
        self._clock = clock
        self._random = random
        self._peers: dict[str, _Peer] = {}
        self._stopped = False
        self._tasks = Tasks("peers", on_fatal)
        self._frames = metrics.counter("strata_peer_frames_total")
        self._bytes = metrics.counter("strata_peer_frame_bytes_total")
        self._failed = metrics.counter("strata_peer_frames_failed_total")
        self._frame_ms = metrics.histogram("strata_peer_frame_ms")
        self._gauges = [
            metrics.gauge("strata_peer_queued_bytes", self._queued_bytes),
            metrics.gauge(
                "strata_peer_frames_in_flight", lambda: sum(p.calls for p in self._peers.values())
            ),
        ]

    def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """See `ports.Transport.send`; False also while a peer that failed is left alone."""
        if self._stopped:
            return False
        peer = self._peer(node_id)
        if self._clock.monotonic_s() < peer.retry_at_s or not peer.queue.offer(envelopes, traffic):
            return False
        self._pump_soon(peer)
        return True

    def send_heartbeat(self, node_id: str, beat: raft_pb2.Beat) -> None:
        """Send a heartbeat with the next frame; a heartbeat that still waits is replaced."""
        if not self._stopped:
            peer = self._peer(node_id)
            peer.beat = beat
            self._pump_soon(peer)

    def take_answer_latencies_ms(self) -> dict[str, float]:
        """Return by peer the median time of its answers since the last call, if there were any."""
        taken = {node_id: peer.answers.take() for node_id, peer in self._peers.items()}
        return {node_id: answers.p50 for node_id, answers in taken.items() if answers.count}

    def forget(self, node_id: str) -> None:
        """A node is no peer any more: drop what waits and close its connection."""
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.queue.clear()
            peer.beat = None
            self._leave_channel(peer)

    async def stop(self) -> None:
        """Drop what waits, end what is under way, close all connections."""
        self._stopped = True
        await self._tasks.stop()
        for peer in self._peers.values():
            if peer.channel is not None:
                await peer.channel.close()
        self._peers.clear()
        for gauge in self._gauges:
            gauge.close()

    # -- inside ----------------------------------------------------------------------------------

    def _peer(self, node_id: str) -> _Peer:
        peer = self._peers.get(node_id)
        if peer is None:
            options = self.options
            pauses = Backoff(options.reconnect_first_ms, options.reconnect_max_ms, self._random)
            peer = self._peers[node_id] = _Peer(
                node_id, PeerQueue(options), pauses, frame_ms=self._frame_ms
            )
        return peer

    def _pump_soon(self, peer: _Peer) -> None:
        """Collect what the rest of this turn hands over, then send it together."""
        if not peer.pump_scheduled:
            peer.pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump, peer)

    def _pump(self, peer: _Peer) -> None:
        peer.pump_scheduled = False
        while not self._stopped and (frame := self._next_frame(peer)) is not None:
            channel = self._channel(peer)
            if channel is None:
                self._lost(peer, frame)
                return
            peer.calls += 1
            peer.in_flight_bytes += frame.size_bytes
            self._tasks.spawn(f"deliver.{peer.node_id}", self._deliver(peer, channel, frame))

    def _next_frame(self, peer: _Peer) -> _Frame | None:
        """Choose what goes next; None: nothing, or nothing now."""
        options = self.options
        if peer.calls >= options.max_calls_in_flight:
            return None
        is_retry = peer.retry_at_s > 0
        if is_retry and self._clock.monotonic_s() < peer.retry_at_s:
            return None
        lowest = TrafficClass.CONTROL if is_retry else self._lowest_class(peer)
        if peer.beat is None and not peer.queue.has(lowest):
            return None
        beat, peer.beat = peer.beat, None
        taken, size = peer.queue.take(options.max_frame_bytes, lowest=lowest)
        return _Frame(beat, taken, size)

    def _lowest_class(self, peer: _Peer) -> TrafficClass:
        """Return the least important class that may be sent now; room is left for those above."""
        options = self.options
        free_calls = options.max_calls_in_flight - peer.calls - options.control_calls_in_flight
        free_bytes = options.max_in_flight_bytes - peer.in_flight_bytes
        if free_calls <= 0 or free_bytes <= -options.lease_in_flight_bytes:
            return TrafficClass.CONTROL
        if free_calls <= options.lease_calls_in_flight or free_bytes <= 0:
            return TrafficClass.LEASE
        return TrafficClass.FETCH

    def _channel(self, peer: _Peer) -> Channel | None:
        """Return the connection to where the node is now."""
        endpoint = self._endpoint_of(peer.node_id)
        if endpoint != peer.endpoint:
            self._leave_channel(peer)
            peer.endpoint = endpoint
        if endpoint is not None and peer.channel is None:
            peer.channel = self._open_channel(endpoint)
        return peer.channel

    def _leave_channel(self, peer: _Peer) -> None:
        channel, peer.channel, peer.endpoint = peer.channel, None, None
        if channel is not None and not self._stopped:
            self._tasks.spawn(f"close.{peer.node_id}", channel.close())

    async def _deliver(self, peer: _Peer, channel: Channel, frame: _Frame) -> None:
        request = raft_pb2.DeliverRequest(
            source_node_id=self.identity.node_id,
            target_node_id=peer.node_id,
            source_boot_id=self.identity.boot_id,
            envelopes=codec.encode(frame.envelopes) if frame.envelopes else b"",
            beat=frame.beat,
        )
        accepted = False
        began_s = self._clock.monotonic_s()
        try:
            response = await channel.call(
                DELIVER,
                request,
                raft_pb2.DeliverResponse,
                timeout_s=self.options.deliver_timeout_ms / 1000,
            )
            accepted = response.accepted
        except AngeliaError as error:
            self._failed.add(1, {"code": error.code})
        finally:
            peer.calls -= 1
            peer.in_flight_bytes -= frame.size_bytes
        if accepted:
            self._frames.add(1)
            self._bytes.add(len(request.envelopes))
            peer.frame_ms.record((self._clock.monotonic_s() - began_s) * 1_000)
            peer.retry_at_s = 0.0
            peer.pauses.reset()
        else:
            if channel is peer.channel:
                # Another node answers at this address: resolve it again.
                self._leave_channel(peer)
            self._lost(peer, frame)
        self._pump(peer)

    def _lost(self, peer: _Peer, frame: _Frame) -> None:
        """Tell the senders of this frame and of all that waits behind it; pause."""
        now_s = self._clock.monotonic_s()
        if now_s >= peer.retry_at_s:
            peer.retry_at_s = now_s + peer.pauses.next_s()
        dropped = [*frame.envelopes, *peer.queue.clear()]
        if dropped and not self._stopped:
            self.on_lost(dropped)

    def _queued_bytes(self) -> Iterable[tuple[float, Mapping[str, str]]]:
        for traffic in TrafficClass:
            queued = sum(peer.queue.queued_bytes[traffic] for peer in self._peers.values())
            yield queued, {"class": traffic.name.lower()}


@dataclass(frozen=True, slots=True)
class _Frame:
    beat: raft_pb2.Beat | None
    envelopes: list[Envelope]
    size_bytes: int


class _Peer:
    """One other node as the transport sees it."""

    __slots__ = (
        "answers",
        "beat",
        "calls",
        "channel",
        "endpoint",
        "frame_ms",
        "in_flight_bytes",
        "node_id",
        "pauses",
        "pump_scheduled",
        "queue",
        "retry_at_s",
    )

    def __init__(
        self, node_id: str, queue: PeerQueue, pauses: Backoff, *, frame_ms: Histogram
    ) -> None:
        self.node_id = node_id
        self.queue = queue
        self.pauses = pauses
        self.frame_ms = frame_ms.bound({"peer": node_id})
        # Since somebody last asked how fast it answers.
        self.answers = HistogramWindow(frame_ms, {"peer": node_id})
        self.beat: raft_pb2.Beat | None = None
        self.calls = 0
        self.in_flight_bytes = 0
        self.pump_scheduled = False
        self.channel: Channel | None = None
        self.endpoint: str | None = None
        # Until then (monotonic seconds) nothing is taken; 0: the last frame was delivered.
        self.retry_at_s = 0.0
