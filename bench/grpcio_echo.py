"""Echo 1 KB through grpc.aio, client and server in one process; prints one JSON line.

Run it under environments with different grpcio versions to compare them:
`python bench/grpcio_echo.py [CALLS]`. Needs only grpcio and uvloop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import grpc
import uvloop
from grpc import aio

IN_FLIGHT = 64
BODY = b"x" * 1024


async def echo(request: bytes, _context: Any) -> bytes:
    """Answer with the request."""
    return request


async def drive(call: Any, total: int) -> None:
    """Keep IN_FLIGHT calls under way until `total` are done."""
    left = total

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call(BODY)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(caller())


async def measure(total: int) -> dict[str, object]:
    """Return calls per second and CPU microseconds per call of both sides together."""
    server = aio.server()
    handlers: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = aio.insecure_channel(f"127.0.0.1:{port}")
    call: Any = channel.unary_unary("/bench.Echo/Echo")
    await drive(call, 2000)
    wall, cpu = time.perf_counter(), time.process_time()
    await drive(call, total)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await channel.close()
    await server.stop(0)
    return {
        "grpcio": grpc.__version__,
        "calls_per_s": round(total / wall),
        "cpu_us_per_call": round(cpu / total * 1e6, 1),
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15_000))))
