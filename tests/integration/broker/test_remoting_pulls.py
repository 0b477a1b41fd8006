"""Pulls of remoting consumers that wait while their connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from strata_broker.base.config import BrokerConfig
from strata_remoting import ResponseCode
from strata_testing import until
from tests.integration.broker.cluster_brokers import ClusterBroker
from tests.integration.broker.remoting_brokers import GROUP, clients
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster


@pytest.fixture
def config() -> BrokerConfig:
    """Two pulls of an address may wait, for much longer than a test."""
    return BrokerConfig.model_validate(
        {
            "receive": {"min_polling_ms": 0, "max_polling_ms": 100_000},
            "pull": {"max_parked_per_address": 2},
            "remoting": {"port": 0},
        }
    )


async def test_a_client_that_connects_anew_may_wait_again(brokers: Sequence[ClusterBroker]) -> None:
    """The pulls of its former connection hold no place any more."""
    async with clients(brokers) as [client]:
        pulls = [
            asyncio.ensure_future(client.pull("orders", GROUP, queue, 0, wait_ms=90_000))
            for queue in (0, 1, 2)
        ]
        [refused], waiting = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result()[0].code == ResponseCode.SYSTEM_BUSY
    for failure in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(failure, ConnectionError)
    async with clients(brokers) as [client]:

        async def has_room() -> bool:
            answer, _ = await client.pull("orders", GROUP, 2, 0)
            return answer.code == ResponseCode.PULL_NOT_FOUND

        await until(has_room)
