"""Connections of the remoting protocol that begin while their broker stops."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

from strata_broker.base.config import BrokerConfig
from strata_broker.remoting.listener import RemotingListener
from strata_edge.handover import HandedConnection
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks


async def test_a_connection_that_begins_behind_the_stop_is_closed() -> None:
    """The stop found no connection to drain, and nobody ends this one later."""
    requests = RequestTasks("remoting", Metrics.disabled(), max_tasks=10)
    runtime = SimpleNamespace(config=BrokerConfig(), metrics=Metrics.disabled(), requests=requests)
    listener = RemotingListener(
        "127.0.0.1",
        None,
        SimpleNamespace(wait_s=lambda _: 0.0),  # type: ignore[arg-type]
        runtime=runtime,  # type: ignore[arg-type]
        disconnected=lambda _: None,
    )
    await listener.start()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        listener.take(HandedConnection(ours, "127.0.0.1:4000", False))
        await listener.stop(1.0)
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""
    await requests.stop()
