"""What an edge holds for clients that do not read is bounded."""

import grpc
import pytest

from strata_edge.options import EdgeOptions
from strata_testing import until
from tests.contract.edge_ways import OpenWay, stream
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import open_way as open_way


async def test_unread_answers_are_bounded(open_way: OpenWay) -> None:
    """While a client does not read, receives above the limit are refused; afterwards not."""
    way = await open_way("direct", EdgeOptions(port=0, max_unread_bytes=1_000_000))
    slow = stream(way.channel, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"first", *(bytes(500_000) for _ in range(40))])
    assert await slow.read() == b"first"
    await until(lambda: way.gauge("strata_edge_unread_bytes") > 1_000_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(way.channel, "ReceiveMessage")(b"more", timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [await slow.read() for _ in range(40)] == [bytes(500_000)] * 40
    assert await slow.read() == grpc.aio.EOF
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    assert way.metrics.counter("strata_edge_refused_calls_total").value({"limit": "unread"}) == 1
