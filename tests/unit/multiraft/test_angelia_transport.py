"""The transport between nodes over channels that a test holds: frames, budgets, loss and return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from strata.raft.v1 import raft_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_multiraft.base.ports import Envelope, TrafficClass
from strata_multiraft.peering import envelopes as codec
from strata_multiraft.peering.angelia_transport import DELIVER, AngeliaTransport, PeerIdentity
from strata_multiraft.peering.peer_queue import PeerQueue
from strata_multiraft.peering.peering_options import TransportOptions
from strata_raft import Entry, EntryKind
from strata_raft.messages import AppendRequest, Heartbeat
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

OPTIONS = TransportOptions(
    max_control_bytes=1_000,
    max_append_bytes=10_000,
    max_frame_bytes=4_000,
    max_calls_in_flight=4,
    control_calls_in_flight=1,
    lease_calls_in_flight=0,
    max_in_flight_bytes=6_000,
    reconnect_first_ms=100,
    reconnect_max_ms=400,
)


def heartbeat(number: int) -> Envelope:
    """A message of the control class, 48 bytes."""
    return Envelope(number, Heartbeat(1, 2, 3, 4, number))


def append(index: int, size_bytes: int = 1_000) -> Envelope:
    """A message of the append class."""
    entry = Entry(1, index, EntryKind.NORMAL, (bytes(size_bytes),))
    return Envelope(1, AppendRequest(1, 2, 1, index - 1, 1, (entry,), 0))


class HeldChannel:
    """A channel whose calls wait until the test answers them."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.requests: list[Any] = []
        self.answers: list[asyncio.Future[bool]] = []
        self.closed = False

    async def call(
        self, method: str, request: Any, response_type: Any, *, timeout_s: float | None = None
    ) -> Any:
        assert method == DELIVER
        assert timeout_s == 3.0
        self.requests.append(request)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return raft_pb2.DeliverResponse(accepted=await answer)

    def stream(self, method: str, request: Message, response_type: Any) -> AsyncIterator[Any]:
        raise AssertionError("no stream here")

    async def close(self) -> None:
        self.closed = True

    def frames(self) -> list[list[Envelope]]:
        return [codec.decode(r.envelopes) if r.envelopes else [] for r in self.requests]

    def answer(self, *, accepted: bool = True) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_result(accepted)

    def fail(self) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(AngeliaError(UNAVAILABLE, "cut"))


class World:
    """A transport and what it sees."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.endpoints: dict[str, str] = {"b": "host:1"}
        self.channels: list[HeldChannel] = []
        self.lost: list[Envelope] = []
        self.fatal: list[BaseException] = []
        self.metrics = Metrics()
        self.transport = AngeliaTransport(
            PeerIdentity("a", 77),
            self.endpoints.get,
            self._open,
            clock=self.clock,
            random=lambda: 0.999,
            options=OPTIONS,
            metrics=self.metrics,
            on_fatal=lambda task, failure: self.fatal.append(failure),
        )
        self.transport.on_lost = self.lost.extend

    def _open(self, endpoint: str) -> HeldChannel:
        self.channels.append(HeldChannel(endpoint))
        return self.channels[-1]

    @property
    def channel(self) -> HeldChannel:
        return self.channels[-1]

    def send(self, *envelopes: Envelope, traffic: TrafficClass = TrafficClass.CONTROL) -> bool:
        return self.transport.send("b", envelopes, traffic)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.transport.stop()
    assert not world.fatal


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_turn_is_one_frame(world: World) -> None:
    """All that one turn hands over leaves in one frame, most important class first."""
    assert world.send(append(5), traffic=TrafficClass.APPEND)
    assert world.send(heartbeat(1))
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=1))
    assert world.send(heartbeat(2))
    assert not world.channels, "nothing is sent while the turn runs"
    await settle()
    (request,) = world.channel.requests
    assert (request.source_node_id, request.target_node_id) == ("a", "b")
    assert request.source_boot_id == 77
    assert request.beat.number == 1
    assert world.channel.frames() == [[heartbeat(1), heartbeat(2), append(5)]]


async def test_how_fast_a_peer_answers(world: World) -> None:
    """The median since the last question, as good as buckets are; none for frames that failed."""
    for took_s in (0.02, 0.02, 0.4):
        world.send(heartbeat(1))
        await settle()
        world.clock.advance(took_s)
        world.channel.answer()
        await settle()
    (latency_ms,) = world.transport.take_answer_latencies_ms().values()
    assert 10 < latency_ms <= 25
    world.send(heartbeat(2))
    await settle()
    assert world.transport.take_answer_latencies_ms() == {}
    world.channel.fail()
    await settle()
    assert world.transport.take_answer_latencies_ms() == {}


async def test_a_full_class_drops_its_own_only(world: World) -> None:
    """A class takes no more than its budget; others keep theirs (rule 15)."""
    for number in range(3):
        assert world.send(append(number + 1, 3_000), traffic=TrafficClass.APPEND)
    assert not world.send(append(4, 3_000), traffic=TrafficClass.APPEND)
    assert world.send(*[heartbeat(n) for n in range(15)])
    assert not world.send(*[heartbeat(n) for n in range(15)])
    assert world.send(append(1), traffic=TrafficClass.FETCH)
    world.metrics.read_gauges()
    assert b'strata_peer_queued_bytes{class="append"} 92' in world.metrics.render()


async def test_slow_peer_still_gets_control_traffic(world: World) -> None:
    """Entries stop at the bytes in flight; both kinds of heartbeats go on, up to the call limit."""
    for number in range(4):
        world.send(append(number + 1, 2_000), traffic=TrafficClass.APPEND)
        await settle()
    assert len(world.channel.requests) == 3, "6,000 bytes are under way"
    world.send(heartbeat(1))
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=1))
    await settle()
    assert world.channel.frames()[3] == [heartbeat(1)]
    world.send(heartbeat(2))
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=2))
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=3))
    await settle()
    assert len(world.channel.requests) == 4, "the call limit"
    world.channel.answer()
    await settle()
    assert world.channel.requests[4].beat.number == 3, "a beat that waits is replaced"
    assert world.channel.frames()[4:] == [[heartbeat(2)], [append(4, 2_000)]]


async def test_large_entry_goes_alone(world: World) -> None:
    """Frames keep to their size; an envelope that is larger than a frame has one of its own."""
    world.send(heartbeat(1), append(1, 100), append(2, 9_000), traffic=TrafficClass.APPEND)
    await settle()
    assert world.channel.frames() == [[heartbeat(1), append(1, 100)], [append(2, 9_000)]]


async def test_a_lost_frame_is_told_and_followed_by_a_pause(world: World) -> None:
    """Messages in a failed frame or behind it are reported; then only heartbeats try again."""
    world.send(heartbeat(1))
    await settle()
    world.channel.fail()
    await settle()
    assert world.lost == [heartbeat(1)]
    assert not world.send(heartbeat(2))
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=9))
    await settle()
    assert len(world.channels) == 1, "not before the pause is over"
    world.clock.advance(0.11)
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=10))
    await settle()
    assert len(world.channels) == 2, "after a loss the node is resolved anew"
    assert world.channel.requests[0].beat.number == 10
    world.channel.fail()
    await settle()
    world.clock.advance(0.11)
    assert not world.send(heartbeat(3)), "the pause has doubled"
    world.clock.advance(0.1)
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=11))
    await settle()
    world.channel.answer()
    await settle()
    assert world.send(heartbeat(4))
    await settle()
    assert world.channel.frames()[-1] == [heartbeat(4)]


async def test_refused_frame_is_lost_and_the_node_resolved_anew(world: World) -> None:
    """A node that answers at an old address and is somebody else gets nothing more."""
    world.send(append(1), traffic=TrafficClass.APPEND)
    await settle()
    world.endpoints["b"] = "host:2"
    old = world.channel
    old.answer(accepted=False)
    await settle()
    assert world.lost == [append(1)]
    assert old.closed
    world.clock.advance(1)
    world.transport.send_heartbeat("b", raft_pb2.Beat(number=1))
    await settle()
    assert [channel.endpoint for channel in world.channels] == ["host:1", "host:2"]


async def test_a_changed_endpoint_is_followed(world: World) -> None:
    """The next frame goes to where the node is now."""
    world.send(heartbeat(1))
    await settle()
    world.endpoints["b"] = "host:2"
    world.send(heartbeat(2))
    await settle()
    assert [channel.endpoint for channel in world.channels] == ["host:1", "host:2"]
    assert world.channels[0].closed
    assert world.channels[1].frames() == [[heartbeat(2)]]


async def test_unknown_endpoint_loses_the_frame(world: World) -> None:
    """A node that nobody knows is not reached, and who sends is told."""
    world.endpoints.clear()
    assert world.send(heartbeat(1))
    await settle()
    assert world.lost == [heartbeat(1)]
    assert not world.channels


async def test_forgotten_peer_leaves_nothing(world: World) -> None:
    """A peer that is none any more has its connection closed and its queue dropped."""
    world.send(heartbeat(1))
    await settle()
    world.send(heartbeat(2))
    world.transport.forget("b")
    await settle()
    assert world.channels[0].closed
    assert len(world.channels[0].requests) == 1


def test_strict_order_of_classes() -> None:
    """A frame is filled from the most important class down, in order within each."""
    queue = PeerQueue(OPTIONS)
    for number, traffic in enumerate(
        [TrafficClass.FETCH, TrafficClass.APPEND, TrafficClass.LEASE, TrafficClass.CONTROL]
    ):
        assert queue.offer([heartbeat(number), heartbeat(number + 10)], traffic)
    taken, size = queue.take(10_000, only_control=False)
    assert [e.raft_group for e in taken] == [3, 13, 2, 12, 1, 11, 0, 10]
    assert size == sum(map(codec.size_bytes, taken))
    assert not queue.has_any()
    assert set(queue.queued_bytes.values()) == {0}
