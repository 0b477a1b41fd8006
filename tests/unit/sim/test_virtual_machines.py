"""Virtual time, machines that die and pause, and the network between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, UNAVAILABLE, AngeliaError, CallContext
from strata_sim.machine import Machine
from strata_sim.network import NetworkOptions, SimChannel, SimNetwork
from strata_sim.virtual_loop import Stuck, VirtualLoop, run

PEERS = meta_pb2.DESCRIPTOR.services_by_name["PeerService"]
HELLO = "/strata.meta.v1.PeerService/Hello"


class Echo:
    """Answers Hello with the caller's own words, after a while."""

    def __init__(self, served: list[str], pause_s: float = 0.0) -> None:
        self._served = served
        self._pause_s = pause_s

    async def hello(
        self, request: meta_pb2.HelloRequest, context: CallContext
    ) -> meta_pb2.HelloResponse:
        """Serve one call."""
        await asyncio.sleep(self._pause_s)
        self._served.append(request.self.node_id)
        return meta_pb2.HelloResponse(self=request.self)


class World:
    """A loop with a server machine `s` and a client machine `c`."""

    def __init__(self, seed: int = 1) -> None:
        chance = random.Random(seed)
        self.loop = VirtualLoop(chance)
        self.network = SimNetwork(self.loop, chance, NetworkOptions(reset_share=0))
        self.server = Machine("s", self.loop)
        self.client = Machine("c", self.loop)
        self.served: list[str] = []

    def serve(self, pause_s: float = 0.0) -> None:
        """Start the server's process."""

        async def main() -> None:
            server = self.network.server(self.server, "s:1")
            server.register(PEERS, Echo(self.served, pause_s))
            await server.start()

        self.server.start(main())

    async def hello(
        self, words: str, timeout_s: float | None = 1.0, channel: SimChannel | None = None
    ) -> str:
        """Call the server once."""
        channel = channel or self.network.channel(self.client, "s:1")
        peer = meta_pb2.NameserverPeer(node_id=words)
        response = await channel.call(
            HELLO, meta_pb2.HelloRequest(self=peer), meta_pb2.HelloResponse, timeout_s=timeout_s
        )
        return response.self.node_id


def simulate(script: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Run a script in a fresh world."""
    world = World()
    run(world.loop, script(world))
    return world


def test_time_jumps() -> None:
    """An hour of sleep takes no time and is an hour."""

    async def script(world: World) -> None:
        await asyncio.sleep(3_600)

    assert simulate(script).loop.time() == pytest.approx(3_600)


def test_work_in_threads_runs_in_order() -> None:
    """Calls of one executor run one after another, whatever their times."""
    done: list[int] = []

    async def script(world: World) -> None:
        calls = [world.loop.run_in_executor(None, done.append, number) for number in range(50)]
        await asyncio.gather(*calls)

    simulate(script)
    assert done == list(range(50))


def test_call_and_answer() -> None:
    """A request reaches the handler and its answer the caller."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        assert await world.hello("one") == "one"

    assert simulate(script).served == ["one"]


def test_killed_process_runs_nothing() -> None:
    """Nothing of a killed process runs, `finally` blocks included; its caller is told."""
    ran: list[str] = []

    async def script(world: World) -> None:
        async def main() -> None:
            try:
                await asyncio.sleep(1)
                ran.append("late")
            finally:
                ran.append("finally")

        world.serve(pause_s=0.5)
        other = Machine("o", world.loop)
        other.start(main())
        await asyncio.sleep(0.1)
        call = asyncio.ensure_future(world.hello("lost", timeout_s=None))
        await asyncio.sleep(0.1)
        other.kill()
        world.server.kill()
        with pytest.raises(AngeliaError) as failure:
            await call
        assert failure.value.code == UNAVAILABLE
        await asyncio.sleep(5)
        assert ran == []

    assert simulate(script).served == []


def test_paused_process_goes_on() -> None:
    """A paused process serves what came meanwhile once it goes on."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        world.server.pause()
        with pytest.raises(AngeliaError) as failure:
            await world.hello("early")
        assert failure.value.code == DEADLINE_EXCEEDED
        assert world.served == []
        world.server.resume()
        assert await world.hello("late") == "late"

    assert simulate(script).served == ["early", "late"]


def test_closed_port_refuses() -> None:
    """Where nobody listens a call ends at once."""

    async def script(world: World) -> None:
        with pytest.raises(AngeliaError) as failure:
            await world.hello("refused")
        assert failure.value.code == UNAVAILABLE
        assert world.loop.time() < 0.1

    simulate(script)


def test_cut_link_holds_back() -> None:
    """Over a cut link a call ends by its deadline, is served once the link is mended, in order."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        channel = world.network.channel(world.client, "s:1")
        await world.hello("first", channel=channel)
        world.network.cut("c", "s")
        for words in ("held", "held too"):
            with pytest.raises(AngeliaError) as failure:
                await world.hello(words, channel=channel)
            assert failure.value.code == DEADLINE_EXCEEDED
        assert world.served == ["first"]
        world.network.heal()
        await world.hello("last", channel=channel)

    assert simulate(script).served == ["first", "held", "held too", "last"]


def test_cut_link_takes_no_connection() -> None:
    """A call over a new connection through a cut link never reaches its server."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        world.network.cut("s", "c")
        with pytest.raises(AngeliaError) as failure:
            await world.hello("lost")
        assert failure.value.code == DEADLINE_EXCEEDED
        world.network.heal()
        await world.hello("again")

    assert simulate(script).served == ["again"]


def test_same_seed_same_run() -> None:
    """Two runs of one seed take the same virtual time to the last digit."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        for number in range(100):
            await world.hello(str(number))

    first, second = simulate(script), simulate(script)
    assert first.loop.time() == second.loop.time()
    assert first.served == second.served


def test_waiting_for_nothing_is_an_error() -> None:
    """A simulation in which nothing can happen any more ends with an error, not never."""

    async def script(world: World) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        simulate(script)


def test_stream_breaks_with_its_server() -> None:
    """Messages that a stream's server sent before it died arrive, then the end is told."""
    got: list[int] = []

    class Counting:
        async def watch(
            self, request: meta_pb2.WatchRequest, context: CallContext
        ) -> AsyncIterator[meta_pb2.WatchResponse]:
            for revision in range(1, 1_000):
                yield meta_pb2.WatchResponse(revision=revision)
                await asyncio.sleep(0.1)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args: None

    async def script(world: World) -> None:
        async def main() -> None:
            server = world.network.server(world.server, "s:1")
            server.register(meta_pb2.DESCRIPTOR.services_by_name["MetaService"], Counting())
            await server.start()

        world.server.start(main())
        await asyncio.sleep(0.1)
        world.loop.call_later(1.05, world.server.kill)
        channel = world.network.channel(world.client, "s:1")
        items = channel.stream(
            "/strata.meta.v1.MetaService/Watch", meta_pb2.WatchRequest(), meta_pb2.WatchResponse
        )
        with pytest.raises(AngeliaError):
            while True:
                got.append((await anext(items)).revision)

    simulate(script)
    assert got == list(range(1, len(got) + 1))
    assert 9 <= len(got) <= 11


def test_simulation_outlives_every_process() -> None:
    """Awaited events of the simulation itself come, also when a process that died brings them."""

    async def script(world: World) -> None:
        world.serve()
        await asyncio.sleep(0.1)
        await world.hello("one")
        waiting = asyncio.ensure_future(asyncio.sleep(1))
        await asyncio.sleep(0.1)
        world.server.kill()
        await waiting

    simulate(script)
