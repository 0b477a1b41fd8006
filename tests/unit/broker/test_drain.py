"""A broker that stops: clients go elsewhere without an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_broker.app import BrokerApp
from strata_testing import until
from strata_testing.broker.broker import waiting_receives
from strata_testing.broker.client import Client, message, received
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.test_telemetry import Stream, producer


@pytest.fixture
async def draining(app: BrokerApp, edge: FakeEdge) -> AsyncIterator[asyncio.Task[None]]:
    """The broker stops, and its clients take their time."""
    edge.drained.clear()
    stopping = asyncio.ensure_future(app.stop(10))
    await until(lambda: edge.draining)
    yield stopping
    edge.drained.set()
    await stopping


async def test_receives_are_answered_at_once(
    client: Client, storage: FakeStorage, app: BrokerApp, edge: FakeEdge
) -> None:
    """Those that wait and those that come: "nothing", and no pop is left waiting in storage."""
    parked = client.begin_receive("orders", "g")
    await until(lambda: storage.count("Pop") == 2)
    edge.drained.clear()
    stopping = asyncio.ensure_future(app.stop(10))
    late = []
    for call in (parked, None):
        responses = await (call or client.begin_receive("orders", "g")).answer
        late.append(received(responses))
    assert [(status.code, messages) for status, messages in late] == [
        (definition_pb2.MESSAGE_NOT_FOUND, [])
    ] * 2
    await until(lambda: not waiting_receives(app))
    assert not stopping.done()
    assert storage.count("Pop") == 2, "one look at each raft group"
    edge.drained.set()
    await stopping


async def test_calls_are_served_until_the_clients_have_gone(
    client: Client, edge: FakeEdge, draining: asyncio.Task[None]
) -> None:
    """Calls that are on their way when a client hears of it must not fail."""
    for number in range(1, 9):
        response = await client.send(message("orders", number))
        assert response.status.code == definition_pb2.OK
    assert edge.running
    assert not draining.done()


async def test_a_stream_that_comes_late_tells_the_settings_and_ends(
    edge: FakeEdge, draining: asyncio.Task[None]
) -> None:
    """A client that starts just now starts; its next stream is another broker's."""
    stream = Stream(edge)
    stream.say(producer("orders"))
    assert (await stream.hear()).settings.publishing.topics[0].name == "orders"
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await stream.hear()
