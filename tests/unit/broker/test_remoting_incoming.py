"""Messages of remoting producers with numbers and bodies that no producer means seriously."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_remoting import RequestCode, ResponseCode, encode_properties
from strata_testing.broker import broker_config
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.remoting_client import RemotingClient, send_fields

MOST = (1 << 63) - 1
LATEST = 253_402_300_799
"""The last second of the year 9999, which is the last one that protobuf knows."""


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(remoting={"port": 0})


@pytest.fixture
def meta() -> FakeMeta:
    fake = FakeMeta()
    fake.add_topic("later", meta_pb2.TOPIC_TYPE_MIXED)
    return fake


@pytest.fixture
async def client(app: BrokerApp) -> AsyncIterator[RemotingClient]:
    async with RemotingClient(app.shown()["nameserver"]) as connected:
        yield connected


@pytest.mark.parametrize("born_ms", [(LATEST + 1) * 1_000, MOST])
async def test_a_producer_with_a_wrong_clock_is_served(
    client: RemotingClient, born_ms: int
) -> None:
    """A message was born when its producer says, however late that is."""
    fields = send_fields("later", 0) | {"g": born_ms}
    sent = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert sent.fields["queueOffset"] == "0"


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": str((LATEST + 1) * 1_000)},
        {"TIMER_DELIVER_MS": "9" * 16},
        {"TIMER_DELAY_MS": "9" * 16},
        {"TIMER_DELAY_SEC": "9" * 16},
    ],
)
async def test_a_delay_of_ages_is_refused(
    client: RemotingClient, properties: dict[str, str]
) -> None:
    """As one that is a little too long: its producer learns what is wrong with it."""
    fields = send_fields("later", 0) | {"i": encode_properties(properties)}
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark


async def test_a_batch_without_messages_is_refused(client: RemotingClient) -> None:
    """There is nothing that an answer could name."""
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("later", 0), b"")
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "a batch has no messages",
    )


@pytest.mark.parametrize("time_ms", [(LATEST + 1) * 1_000, MOST])
async def test_a_time_beyond_all_times_has_an_offset(client: RemotingClient, time_ms: int) -> None:
    """Consumers ask for it to skip what there is."""
    answer = await client.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "later", "queueId": 0, "timestamp": time_ms},
    )
    assert (answer.code, answer.fields) == (ResponseCode.SUCCESS, {"offset": "0"}), answer.remark
