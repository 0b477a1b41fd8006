"""Two brokers of one cluster that know each other, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_testing import until
from strata_testing.broker import broker_under_test, network_of
from strata_testing.broker.fake_edge import EdgeChannel, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage


@asynccontextmanager
async def two_brokers(
    meta: FakeMeta, storage: FakeStorage, config: BrokerConfig
) -> AsyncIterator[tuple[dict[str, FakeEdge], list[BrokerApp]]]:
    """Yield the edges by endpoint, and the brokers `broker-1` and `broker-2`, while they run."""
    edges = {f"127.0.0.{number}:18081": FakeEdge() for number in (1, 2)}
    network = replace(
        network_of(meta, storage),
        broker_channels=lambda endpoints, headers: EdgeChannel(edges, endpoints[0], headers),
    )
    brokers = [
        broker_under_test(
            edges[f"127.0.0.{number}:18081"],
            network,
            config=config,
            identity=BrokerIdentity(f"broker-{number}", number, f"127.0.0.{number}"),
        )
        for number in (1, 2)
    ]
    apps = [broker.app for broker in brokers]
    for broker in brokers:
        await broker.start()
    kind = meta_pb2.NODE_KIND_BROKER
    await until(lambda: all(len(app.view.nodes(kind)) == 2 for app in apps))
    yield edges, apps
    for broker in brokers:
        await broker.stop()
