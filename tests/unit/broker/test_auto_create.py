"""`auto_create_topic` on and `auto_create_group` off."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_meta import FakeMeta


@pytest.fixture
def config() -> BrokerConfig:
    """The opposite of the defaults."""
    return broker_config(metadata={"auto_create_topic": True, "auto_create_group": False})


async def test_an_unknown_topic_is_made_once_by_the_first_send(
    client: Client, meta: FakeMeta
) -> None:
    """Sends at once make one MIXED topic and all succeed."""
    responses = await asyncio.gather(*(client.send(message("new", n)) for n in range(1, 6)))
    assert {response.status.code for response in responses} == {definition_pb2.OK}
    assert meta.calls.count("CreateTopic") == 1
    topics = [change.topic for change in meta.rows if change.topic.name == "new"]
    assert [topic.type for topic in topics] == [meta_pb2.TOPIC_TYPE_MIXED]


async def test_an_illegal_name_is_not_made(client: Client, meta: FakeMeta) -> None:
    """Names are checked before the nameserver is asked."""
    assert (await client.send(message("bad name", 1))).status.code == definition_pb2.ILLEGAL_TOPIC
    assert "CreateTopic" not in meta.calls


async def test_an_unknown_consumer_group_is_refused(client: Client, meta: FakeMeta) -> None:
    """CONSUMER_GROUP_NOT_FOUND, and nothing is made."""
    status, _ = await client.receive("orders", "unknown")
    assert status.code == definition_pb2.CONSUMER_GROUP_NOT_FOUND
    assert "CreateConsumerGroup" not in meta.calls
