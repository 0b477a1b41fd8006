"""Rules of an edge that sends its clients away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from strata_edge.options import EdgeOptions
from strata_edge.ports import HotCall
from strata_runtime.tls import Certificate, self_signed
from strata_testing import until
from tests.contract.edge_ways import Adapter
from tests.contract.edge_ways import adapter as adapter

SERVICE = "strata.test.v1.EdgeService"


class Broker:
    """Answers at once, except what it is told to hold."""

    def __init__(self) -> None:
        self.held: list[HotCall] = []
        self.answered = 0

    def handle(self, calls: Sequence[HotCall]) -> None:
        for call in calls:
            if call.request == b"hold":
                self.held.append(call)
            else:
                self.answered += 1
                call.complete([call.request])


def channel_to(port: int, certificate: Certificate | None) -> grpc.aio.Channel:
    """Open a client's channel, with TLS if there is a certificate."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if certificate is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
    credentials = grpc.ssl_channel_credentials(certificate.certificate_file.read_bytes())
    options_tls = [*options, ("grpc.ssl_target_name_override", "localhost")]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options_tls)


async def send(channel: grpc.aio.Channel, request: bytes) -> bytes:
    """Make a call."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    call = channel.unary_unary(f"/{SERVICE}/SendMessage")
    return await call(request, timeout=20)


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plaintext"])
async def test_clients_go_without_an_error(tmp_path: Path, tls: bool, adapter: Adapter) -> None:
    """Calls under way, and those that clients make before they hear of it, are served."""
    certificate = self_signed(tmp_path, ["localhost"])
    edge, broker = adapter(EdgeOptions(port=0, front=True, certificate=certificate)), Broker()
    edge.set_hot_handler(SERVICE, broker)
    port = await edge.start()
    failures: list[grpc.StatusCode] = []

    async def send_until_it_fails() -> None:
        async with channel_to(port, certificate if tls else None) as channel:
            while True:
                try:
                    await send(channel, b"x")
                except grpc.aio.AioRpcError as error:
                    failures.append(error.code())
                    return

    async with channel_to(port, certificate if tls else None) as channel:
        held = asyncio.ensure_future(send(channel, b"hold"))
        await until(lambda: bool(broker.held))
        sending = [asyncio.ensure_future(send_until_it_fails()) for _ in range(8)]
        await until(lambda: broker.answered > 100)
        draining = asyncio.ensure_future(edge.drain(20))
        await asyncio.gather(*sending)
        # The port is closed: who was sent away finds nobody. No call that was taken has failed.
        assert failures == [grpc.StatusCode.UNAVAILABLE] * 8
        assert not draining.done()
        broker.held[0].complete([b"held"])
        assert await held == b"held"
        await draining
        assert edge.front_pid is None
    await edge.stop(1)


async def test_a_client_that_stays_is_waited_for_no_longer_than_said(
    tmp_path: Path, adapter: Adapter
) -> None:
    """Then the edge stops, whoever is connected still."""
    certificate = self_signed(tmp_path)
    edge, broker = adapter(EdgeOptions(port=0, front=True, certificate=certificate)), Broker()
    edge.set_hot_handler(SERVICE, broker)
    port = await edge.start()
    async with channel_to(port, None) as channel:
        held = asyncio.ensure_future(send(channel, b"hold"))
        await until(lambda: bool(broker.held))
        await edge.drain(0.2)
        assert not held.done()
        await edge.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await held
