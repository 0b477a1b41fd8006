"""Rules of an edge that asks single clients to connect again while its port stays open."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest

from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_edge.ports import CallInfo, Edge, HotCall
from strata_runtime.metrics import Metrics
from strata_runtime.tls import Certificate, self_signed
from strata_testing import until
from tests.contract.edge_ways import Adapter
from tests.contract.edge_ways import adapter as adapter
from tests.contract.test_edge_drain import SERVICE, channel_to, send


class Broker:
    """Answers with the client's address, except what it is told to hold; talks until the end."""

    def __init__(self) -> None:
        self.held: list[HotCall] = []
        self.talks: dict[str, asyncio.Event] = {}

    def handle(self, calls: Sequence[HotCall]) -> None:
        for call in calls:
            if call.request == b"hold":
                self.held.append(call)
            else:
                call.complete([call.peer.encode()])

    async def talk(self, requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
        over = self.talks[info.peer] = asyncio.Event()
        yield info.peer.encode()
        await over.wait()


async def _served(
    adapter: Adapter, certificate: Certificate, metrics: Metrics
) -> tuple[Edge, Broker, int]:
    broker = Broker()
    edge = adapter(EdgeOptions(port=0, front=True, certificate=certificate), metrics)
    edge.set_hot_handler(SERVICE, broker)
    edge.add_stream(f"/{SERVICE}/Talk", broker.talk)
    return edge, broker, await edge.start()


async def _counted(edge: Edge, connections: int) -> None:
    await until(lambda: edge.connections() == connections, limit_s=20)


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plaintext"])
async def test_the_first_clients_go_without_an_error(
    tmp_path: Path, tls: bool, adapter: Adapter
) -> None:
    """Their calls under way end as usual, the next ones come over new connections; others stay."""
    certificate, metrics = self_signed(tmp_path, ["localhost"]), Metrics()
    edge, broker, port = await _served(adapter, certificate, metrics)
    channels = [channel_to(port, certificate if tls else None) for _ in range(3)]
    before = [(await send(channel, b"who")).decode() for channel in channels]
    await _counted(edge, 3)
    held = asyncio.ensure_future(send(channels[0], b"hold"))
    await until(lambda: bool(broker.held))

    away = await edge.send_away(2)
    assert list(away) == before[:2]

    async def moved(channel: grpc.aio.Channel, from_peer: str) -> str:
        answers: list[str] = []

        async def has_moved() -> bool:
            answers.append((await send(channel, b"who")).decode())
            return answers[-1] != from_peer

        await until(has_moved, limit_s=20)
        return answers[-1]

    after = [await moved(*pair) for pair in zip(channels[:2], before[:2], strict=True)]
    assert not set(after) & set(before)
    assert (await send(channels[2], b"who")).decode() == before[2]
    broker.held[0].complete([b"held"])
    assert await held == b"held"
    await _counted(edge, 3)
    # The newcomers are asked last: the third client has been here for longer.
    assert list(await edge.send_away(1)) == [before[2]]
    assert b"strata_edge_sent_away_total 3" in metrics.render()
    for channel in channels:
        await channel.close()
    await edge.stop(0)


async def test_a_stream_holds_its_connection_until_it_ends(
    tmp_path: Path, adapter: Adapter
) -> None:
    """The connection counts as leaving meanwhile, and is asked no second time."""
    certificate, metrics = self_signed(tmp_path), Metrics()
    edge, broker, port = await _served(adapter, certificate, metrics)

    def leaving() -> bytes:
        metrics.read_gauges()
        lines = metrics.render().splitlines()
        return next(one for one in lines if one.startswith(b"strata_edge_leaving_connections "))

    async with channel_to(port, None) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream(f"/{SERVICE}/Talk")
        talk = method()
        first = await talk.read()
        assert isinstance(first, bytes)
        peer = first.decode()
        await _counted(edge, 1)
        assert list(await edge.send_away(5)) == [peer]
        assert list(await edge.send_away(5)) == []
        await _counted(edge, 0)
        assert leaving().endswith(b" 1.0")
        broker.talks[peer].set()
        assert await talk.read() == grpc.aio.EOF
        assert await talk.code() is grpc.StatusCode.OK
        # grpcio's client keeps a connection for as long as somebody holds one of its calls.
        del talk
        gc.collect()
        await until(lambda: leaving().endswith(b" 0.0"), limit_s=20)
    await edge.stop(0)


async def test_grpcio_without_a_front_says_that_it_cannot() -> None:
    """It knows neither connections nor a way to end one: nobody is counted or sent away."""
    edge = GrpcioEdge(EdgeOptions(port=0, front=False))
    broker = Broker()
    edge.set_hot_handler(SERVICE, broker)
    async with channel_to(await edge.start(), None) as channel:
        await send(channel, b"who")
        assert edge.connections() is None
        assert list(await edge.send_away(1)) == []
    await edge.stop(0)
