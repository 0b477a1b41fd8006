"""Rules of a caller's choice of transport and codec."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from strata.raft.v1 import raft_pb2
from strata_angelia import ports
from strata_angelia.codec import ProtobufCodec
from strata_angelia.factory import CODEC_NAMES, TRANSPORTS, open_channel, open_server
from strata_angelia.http2_channel import Http2Channel
from strata_angelia.ports import AngeliaError, CallContext, Channel
from strata_angelia.tcp_channel import TcpChannel

DELIVER = "/strata.raft.v1.RaftService/Deliver"


class Handler:
    """Accepts frames for node `a`."""

    async def deliver(
        self, request: raft_pb2.DeliverRequest, context: CallContext
    ) -> raft_pb2.DeliverResponse:
        return raft_pb2.DeliverResponse(accepted=request.target_node_id == "a")

    async def fetch_snapshot(
        self, request: raft_pb2.FetchSnapshotRequest, context: CallContext
    ) -> AsyncIterator[raft_pb2.FetchSnapshotResponse]:
        yield raft_pb2.FetchSnapshotResponse(refused="none here")


class MorseCodec(ProtobufCodec):
    """A codec that no server knows."""

    name = "morse"


@pytest.fixture(params=TRANSPORTS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """The transport, and the endpoint of a server."""
    server = open_server("127.0.0.1", 0, request.param)
    server.register(raft_pb2.DESCRIPTOR.services_by_name["RaftService"], Handler())
    yield request.param, await server.start()
    await server.stop(0)


async def deliver(channel: Channel, node_id: str) -> bool:
    request = raft_pb2.DeliverRequest(target_node_id=node_id)
    response = await channel.call(DELIVER, request, raft_pb2.DeliverResponse, timeout_s=5)
    return response.accepted


async def test_one_server_takes_all_codecs_at_once(served: tuple[str, str]) -> None:
    """Callers with different codecs are served side by side by the same server."""
    transport, endpoint = served
    channels = [open_channel(endpoint, transport, codec) for codec in CODEC_NAMES]
    for node_id in ("a", "b"):
        assert [await deliver(channel, node_id) for channel in channels] == [node_id == "a"] * 3
    for channel in channels:
        await channel.close()


async def test_unknown_codec(served: tuple[str, str]) -> None:
    """A caller with a codec the server lacks is told so, and nobody else suffers."""
    transport, endpoint = served
    kind = TcpChannel if transport == "tcp" else Http2Channel
    channel = kind(endpoint, codec=MorseCodec())
    with pytest.raises(AngeliaError, match="unknown codec 'morse'") as caught:
        await deliver(channel, "a")
    assert caught.value.code == ports.BAD_REQUEST
    await channel.close()
    other = open_channel(endpoint, transport)
    assert await deliver(other, "a")
    await other.close()


@pytest.mark.parametrize(("transport", "codec"), [("udp", "protobuf"), ("tcp", "morse")])
def test_factory_knows_its_names(transport: str, codec: str) -> None:
    """A transport or codec that does not exist is refused by name."""
    with pytest.raises(ValueError, match=r"unknown (transport 'udp'|codec 'morse')"):
        open_channel("127.0.0.1:1", transport, codec)
