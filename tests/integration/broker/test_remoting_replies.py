"""Request and reply of remoting clients: the reply finds the client that asked, at any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from strata_broker.base.config import BrokerConfig
from strata_remoting import (
    PulledMessage,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_properties,
    encode_properties,
)
from strata_testing import until
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.integration.broker.cluster_brokers import ClusterBroker
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import (
    client_of,
    clients,
    pulled_from,
    remoting_config,
)
from tests.integration.broker.remoting_brokers import cluster as cluster

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKER = "10.0.0.1@asker"
REPLY_TIMEOUT_MS = 2_000
"""More than a client needs that takes a reply, on a busy machine, too."""


@pytest.fixture
def config() -> BrokerConfig:
    return remoting_config(reply_timeout_ms=REPLY_TIMEOUT_MS)


async def _reply(
    client: RemotingClient, body: bytes = b"pong", to: str = ASKER, topic: str = REPLY_TOPIC
) -> RemotingCommand:
    """Send a reply as the older clients do, with the single letters of the newer ones."""
    properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000"}
    if to:
        properties["REPLY_TO_CLIENT"] = to
    fields = {**send_fields(topic, 0, 1), "i": encode_properties(properties)}
    return await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, body)


async def test_a_request_names_the_topic_of_replies(brokers: Sequence[ClusterBroker]) -> None:
    """A consumer sees the cluster's name in a request, and in no other message."""
    async with clients(brokers) as [client]:
        await client.send(
            "orders", b"ping", CORRELATION_ID="c-1", REPLY_TO_CLIENT=ASKER, TTL="3000"
        )
        await client.send("orders", b"plain")
        found = {one.body: _properties(one) for one in await pulled_from(client, "orders")}
    assert found[b"ping"]["CLUSTER"] == "DefaultCluster"
    assert found[b"ping"]["REPLY_TO_CLIENT"] == ASKER
    assert found[b"ping"]["CORRELATION_ID"] == "c-1"
    assert "CLUSTER" not in found[b"plain"]


def _properties(message: PulledMessage) -> dict[str, str]:
    return decode_properties(message.properties)


async def test_any_broker_takes_replies(brokers: Sequence[ClusterBroker]) -> None:
    """The route of the topic of replies has queues to write to at all broker names."""
    async with client_of(brokers[0]) as client:
        route = await client.route(REPLY_TOPIC)
    names = {one["brokerName"] for one in route["brokerDatas"]}
    assert {one["brokerName"] for one in route["queueDatas"]} == names
    assert {one["writeQueueNums"] for one in route["queueDatas"]} == {1}
    addresses = {one["brokerAddrs"]["0"] for one in route["brokerDatas"]}
    assert addresses == {broker.app.shown()["nameserver"] for broker in brokers}


@pytest.mark.parametrize("at", [0, 1], ids=["same-broker", "other-broker"])
async def test_a_reply_reaches_the_client_that_asked(
    brokers: Sequence[ClusterBroker], at: int
) -> None:
    """Its consumer may be connected to any broker, and hears that the client has taken it."""
    async with client_of(brokers[0]) as asker, client_of(brokers[at]) as consumer:
        await asker.heartbeat(ASKER, "", {}, producers=["p"])
        for number in range(3):
            answer = await _reply(consumer, b"pong-%d" % number)
            assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "0")
        assert [one.body for one in asker.told] == [b"pong-0", b"pong-1", b"pong-2"]
        told = asker.told[0]
    assert told.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert decode_properties(told.fields["properties"])["CORRELATION_ID"] == "c-1"
    assert (told.fields["topic"], told.fields["sysFlag"]) == (REPLY_TOPIC, "1")
    # Java's clients refuse the header if one of these is missing.
    assert told.fields.keys() >= {
        *("producerGroup", "defaultTopic", "defaultTopicQueueNums", "queueId", "bornTimestamp"),
        *("flag", "bornHost", "storeHost", "storeTimestamp"),
    }


async def test_a_client_that_moved_gets_its_next_reply(brokers: Sequence[ClusterBroker]) -> None:
    """A broker that has lost the client is not believed for long."""
    async with client_of(brokers[1]) as consumer:
        async with client_of(brokers[0]) as asker:
            await asker.heartbeat(ASKER, "", {}, producers=["p"])
            assert (await _reply(consumer)).code == ResponseCode.SUCCESS
        refused = await _reply(consumer)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == f"push reply message fail, channel of <{ASKER}> not found."
        async with client_of(brokers[0]) as again:
            await again.heartbeat(ASKER, "", {}, producers=["p"])
            assert (await _reply(consumer, b"second")).code == ResponseCode.SUCCESS
            assert [one.body for one in again.told] == [b"second"]


@pytest.mark.parametrize("at", [0, 1], ids=["same-broker", "other-broker"])
@pytest.mark.parametrize(
    ("answers", "text"),
    [(None, "did not take the reply within 2 s"), (ResponseCode.SYSTEM_ERROR, "as told")],
    ids=["silent", "refusing"],
)
async def test_a_client_that_takes_no_reply(
    brokers: Sequence[ClusterBroker], at: int, answers: ResponseCode | None, text: str
) -> None:
    """Its consumer hears why, within the time limit; the client's connection lives on."""
    async with client_of(brokers[0]) as asker, client_of(brokers[at]) as consumer:
        await asker.heartbeat(ASKER, "", {}, producers=["p"])
        asker.answers = answers
        refused = await _reply(consumer)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark.startswith(f"push reply message to {ASKER} fail: ")
        assert text in refused.remark
        asker.answers = ResponseCode.SUCCESS
        assert (await _reply(consumer)).code == ResponseCode.SUCCESS


async def test_replies_that_are_refused(brokers: Sequence[ClusterBroker]) -> None:
    """One to nobody, one to another topic, one that is too large: each with a reason."""
    async with client_of(brokers[0]) as client:
        await client.heartbeat(ASKER, "", {}, producers=["p"])
        nobody = await _reply(client, to="")
        assert nobody.code == ResponseCode.SYSTEM_ERROR
        assert nobody.remark == "REPLY_TO_CLIENT is null, can not reply message"
        elsewhere = await _reply(client, topic="orders")
        assert elsewhere.code == ResponseCode.MESSAGE_ILLEGAL
        assert REPLY_TOPIC in elsewhere.remark
        large = await _reply(client, bytes(5_000_000))
        assert large.code == ResponseCode.MESSAGE_ILLEGAL
        assert "message body cannot exceed the max 4194304" in large.remark
        assert client.told == []


async def test_a_client_that_ends_while_it_is_asked(brokers: Sequence[ClusterBroker]) -> None:
    """Its consumer hears at once that it is gone."""
    async with client_of(brokers[1]) as consumer:
        async with client_of(brokers[0]) as asker:
            await asker.heartbeat(ASKER, "", {}, producers=["p"])
            asker.answers = None
            reply = asyncio.ensure_future(_reply(consumer))
            await until(lambda: len(asker.told) == 1)
        refused = await reply
        assert refused.remark.endswith("not found.")
