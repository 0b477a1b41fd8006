"""A server may stop at any moment of its clients' connections.

grpcio 1.78 ended the process when a server stopped while connections were being made
(docs/adr/0006-grpcio-version.md). A failure here is a crash of the test's process.
"""

from __future__ import annotations

import asyncio

import grpc

from strata_edge.options import EdgeOptions
from strata_runtime.metrics import Metrics
from tests.contract.edge_ways import Adapter
from tests.contract.edge_ways import adapter as adapter

ROUNDS = 10
EDGES = 6
CLIENTS_PER_EDGE = 3
METHOD = "/strata.test.v1.EdgeService/Nothing"


async def test_an_edge_stops_while_clients_connect(adapter: Adapter) -> None:
    """Sixty servers stop amid the handshakes of clients that connect again and again."""
    stopped = 0
    for _ in range(ROUNDS):
        stopped += sum(await asyncio.gather(*(_stop_one(adapter) for _ in range(EDGES))))
    assert stopped == ROUNDS * EDGES


async def _stop_one(adapter: Adapter) -> int:
    edge = adapter(EdgeOptions(host="127.0.0.1", port=0, front=False), Metrics.disabled())
    port = await edge.start()
    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS_PER_EDGE):
            clients.create_task(_knock(port))
        await asyncio.sleep(0.05)
        await edge.stop(0)
    return 1


async def _knock(port: int) -> None:
    """Connect again and again, until nobody answers that there is no such method."""
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    answered = True
    while answered:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", own_connection) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            try:
                await call(b"", timeout=0.2)
            except grpc.aio.AioRpcError as error:
                answered = error.code() is grpc.StatusCode.UNIMPLEMENTED
