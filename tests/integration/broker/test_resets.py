"""Receives that clients reset at any moment, over real storage nodes: nothing stays leased."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing.broker.client import message, received
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    number_of,
    reading_from,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

MESSAGES = 100
RECEIVES = 400
CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 200, "max_parked_per_client": 1_000},
        "metadata": {"auto_create_group": False},
    }
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups."""
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.mark.parametrize("source", ["leader", "replicas"])
@pytest.mark.parametrize(("topic", "group"), [("orders", "g"), ("fifo", "ordered")])
async def test_what_clients_did_not_take_is_delivered_as_the_first_attempt(
    cluster: ClusterUnderTest, source: str, topic: str, group: str
) -> None:
    """Auto-renewed receives are reset after 0 to 8 ms, before, while or after they are answered.

    Their client lives on, so nobody else would ever end what they leased.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    async with brokers_over(cluster, reading_from(source, CONFIG)) as (broker, _):
        for number in range(MESSAGES):
            one = message(topic, number, body=b"%d" % number)
            if topic == "fifo":
                one.system_properties.message_group = f"g{number % 16}"
                one.system_properties.message_type = definition_pb2.FIFO
            sent = await broker.client.send(one)
            assert sent.status.code == definition_pb2.OK

        async def reset_one(number: int) -> None:
            await asyncio.sleep(number * 0.002)
            call = broker.client.begin_receive(
                topic, group, auto_renew=True, broker=f"strata-{1 + number % 2}", batch_size=8
            )
            await asyncio.sleep(chosen.random() * 0.008)
            if call.done():
                call.refuse_answer()
            else:
                call.leave()

        await asyncio.gather(*map(reset_one, range(RECEIVES)))
        got = await take_all(broker, topic, group)
        assert sorted(got) == list(range(MESSAGES))
        assert set(got.values()) == {1}


async def take_all(broker: ClusterBroker, topic: str, group: str) -> dict[int, int]:
    """Receive and ack until everything came; return the attempts by message."""
    attempts: dict[int, int] = {}
    async with asyncio.timeout(30):
        while len(attempts) < MESSAGES:
            for name in ("strata-1", "strata-2"):
                call = broker.client.begin_receive(topic, group, broker=name, polling_s=0)
                handles = []
                for one in received(await call.answer)[1]:
                    attempts[number_of(one)] = one.system_properties.delivery_attempt
                    handles.append(one.system_properties.receipt_handle)
                if handles:
                    await broker.client.ack(topic, group, *handles)
    return attempts
