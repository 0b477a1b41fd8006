"""Calls that await nothing are carried out where they arrive; their failures stay their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from strata.raft.v1 import raft_pb2
from strata_angelia import ports
from strata_angelia.methods import immediate
from strata_angelia.ports import AngeliaError, CallContext
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer

RAFT = raft_pb2.DESCRIPTOR.services_by_name["RaftService"]
DELIVER = "/strata.raft.v1.RaftService/Deliver"


class Handler:
    """Does what the source's name asks for."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None] | None] = []

    @immediate
    async def deliver(
        self, request: raft_pb2.DeliverRequest, context: CallContext
    ) -> raft_pb2.DeliverResponse:
        self.tasks.append(asyncio.current_task())
        match request.source_node_id:
            case "refused":
                raise AngeliaError(ports.UNAVAILABLE, "not now")
            case "broken":
                raise KeyError("a mistake")
            case "waits":
                await asyncio.sleep(0)
        return raft_pb2.DeliverResponse(accepted=True)

    async def fetch_snapshot(
        self, request: raft_pb2.FetchSnapshotRequest, context: CallContext
    ) -> AsyncIterator[raft_pb2.FetchSnapshotResponse]:
        yield raft_pb2.FetchSnapshotResponse(refused="none")


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        ("refused", ports.UNAVAILABLE, "not now"),
        ("broken", ports.INTERNAL, "a mistake"),
        ("waits", ports.INTERNAL, "marked as immediate and waits"),
    ],
)
async def test_immediate_calls(source: str, code: str, reason: str) -> None:
    """They have no task; one that fails, or waits although it must not, ends alone."""
    server, handler = TcpServer("127.0.0.1", 0), Handler()
    server.register(RAFT, handler)
    channel = TcpChannel(await server.start())

    async def call(name: str) -> raft_pb2.DeliverResponse:
        request = raft_pb2.DeliverRequest(source_node_id=name)
        return await channel.call(DELIVER, request, raft_pb2.DeliverResponse, timeout_s=30)

    try:
        good, bad, again = await asyncio.gather(
            call("a"), call(source), call("b"), return_exceptions=True
        )
        assert isinstance(bad, AngeliaError)
        assert bad.code == code
        assert reason in bad.reason
        for one in (good, again):
            assert isinstance(one, raft_pb2.DeliverResponse)
            assert one.accepted
        assert handler.tasks == [None, None, None]
        assert len(server.calls) == 0
    finally:
        await channel.close()
        await server.stop(0)
