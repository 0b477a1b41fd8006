"""One broker over the in-memory cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_testing.broker import BrokerUnderTest, broker_config, broker_under_test, network_of
from strata_testing.broker.client import Client
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from strata_testing.leaping_loop import LeapingLoop

# They count what happens within time limits of their own, by the event loop's clock alone.
LEAPING = ("test_holder_calls.py", "test_popper.py", "test_remoting_connection.py")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Nothing in a module of `LEAPING` is too slow because the machine is."""
    is_leaping = item.path.name in LEAPING
    return {"leaping": LeapingLoop} if is_leaping else {"real": asyncio.SelectorEventLoop}


def watermarks(app: BrokerApp) -> dict[str, float]:
    """Return how many requests each processor has, as a scrape shows it."""
    app._metrics.read_gauges()
    name = "rocketmq_processor_watermark"
    lines = app._metrics.render().decode().splitlines()
    found = [line.rsplit(" ", 1) for line in lines if line.startswith(name)]
    return {
        series.removeprefix(f'{name}{{processor="').removesuffix('"}'): float(value)
        for series, value in found
    }


@pytest.fixture
def config() -> BrokerConfig:
    """Short pauses; a module or test may override it."""
    return broker_config()


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver, with a NORMAL topic `orders` and a FIFO topic `fifo` of 4 queues."""
    fake = FakeMeta()
    fake.add_topic("orders")
    fake.add_topic("fifo", meta_pb2.TOPIC_TYPE_FIFO)
    return fake


@pytest.fixture
async def storage(meta: FakeMeta) -> FakeStorage:
    """The storage node."""
    return FakeStorage(meta.slots)


@pytest.fixture
async def broker(
    config: BrokerConfig, meta: FakeMeta, storage: FakeStorage
) -> AsyncIterator[BrokerUnderTest[FakeEdge]]:
    """A broker that serves; nothing in it may have failed at its end."""
    async with broker_under_test(FakeEdge(), network_of(meta, storage), config=config) as broker:
        yield broker


@pytest.fixture
async def app(broker: BrokerUnderTest[FakeEdge]) -> BrokerApp:
    """The broker's application."""
    return broker.app


@pytest.fixture
async def edge(broker: BrokerUnderTest[FakeEdge]) -> FakeEdge:
    """Its edge."""
    return broker.edge


@pytest.fixture
async def failed_requests(
    broker: BrokerUnderTest[FakeEdge],
) -> list[tuple[str, BaseException]]:
    """Requests that failed unexpectedly; a test that made them fail takes them out."""
    return broker.failures


@pytest.fixture
async def client(edge: FakeEdge) -> Client:
    """A client of the broker."""
    return Client(edge)
