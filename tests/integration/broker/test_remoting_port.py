"""The port for remoting clients: calls of a nameserver, refusals and limits."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence

import pytest

from strata_broker.base.config import BrokerConfig
from strata_remoting import (
    RequestCode,
    ResponseCode,
)
from strata_testing.remoting_client import RemotingRefusedError
from tests.integration.broker.cluster_brokers import ClusterBroker, brokers_over
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import (
    client_of,
    pulled_from,
    remoting_config,
)
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config
from tests.integration.storage.storage_cluster import ClusterUnderTest


async def test_all_brokers_give_the_same_route(brokers: Sequence[ClusterBroker]) -> None:
    """One broker name for all queues of a topic, and behind it one address that listens."""
    shown = []
    for broker in brokers:
        async with client_of(broker) as client:
            shown.append(await client.route("orders"))
            cluster = await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert shown[0] == shown[1]
    [queues] = shown[0]["queueDatas"]
    [data] = shown[0]["brokerDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)
    assert queues["brokerName"] == data["brokerName"]
    assert data["brokerAddrs"]["0"] in {broker.app.shown()["nameserver"] for broker in brokers}
    table = json.loads(cluster.body)["brokerAddrTable"]
    assert table[data["brokerName"]] == data
    assert {one["brokerAddrs"]["0"] for one in table.values()} == {
        broker.app.shown()["nameserver"] for broker in brokers
    }


@pytest.mark.parametrize(
    ("code", "fields", "answered", "text"),
    [
        (9_999, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 9999 not supported"),
        (
            RequestCode.GET_KV_CONFIG,
            {"namespace": "N", "key": "K"},
            ResponseCode.QUERY_NOT_FOUND,
            "No config item, Namespace: N Key: K",
        ),
        (RequestCode.REGISTER_BROKER, {}, ResponseCode.NO_PERMISSION, "this is a StrataMQ cluster"),
        (RequestCode.PULL_MESSAGE, {}, ResponseCode.SYSTEM_ERROR, "the field consumerGroup is"),
        (
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": "TBW102"},
            ResponseCode.TOPIC_NOT_EXIST,
            "No topic route info in name server for the topic: TBW102",
        ),
    ],
)
async def test_requests_that_are_refused(
    brokers: Sequence[ClusterBroker],
    code: int,
    fields: dict[str, str],
    answered: ResponseCode,
    text: str,
) -> None:
    """Each with a code that clients know and a text for people; the connection lives on."""
    async with client_of(brokers[0]) as client:
        answer = await client.ask(code, fields)
        assert answer.code == answered
        assert answer.remark.startswith(text)
        assert await client.route("orders")


async def test_bytes_that_are_no_frame_end_the_connection(brokers: Sequence[ClusterBroker]) -> None:
    """A frame beyond the limit, and bytes of another protocol; other connections live on."""
    async with client_of(brokers[0]) as witness:
        for junk in (struct.pack(">II", 1 << 30, 10), b"GET / HTTP/1.1\r\n\r\n"):
            async with client_of(brokers[0]) as client:
                client.write(junk)
                async with asyncio.timeout(60):
                    await client.ended.wait()
        assert await witness.route("orders")


async def test_connections_and_idle_ones_are_bounded(cluster: ClusterUnderTest) -> None:
    """A connection beyond the limit is closed at once, an idle one after its time."""
    limits = remoting_config(max_connections_per_address=2, idle_timeout_ms=300)
    async with brokers_over(cluster, limits, 1) as [broker]:
        async with client_of(broker) as first, client_of(broker) as second:
            async with client_of(broker) as third, asyncio.timeout(60):
                await third.ended.wait()
            async with asyncio.timeout(60):
                await first.ended.wait()
                await second.ended.wait()
        async with client_of(broker) as next_one:
            assert await next_one.route("orders")


async def test_a_frame_that_arrives_too_slowly_ends_its_connection(
    cluster: ClusterUnderTest,
) -> None:
    """A client cannot hold the memory of a frame that it never finishes."""
    async with (
        brokers_over(cluster, remoting_config(max_upload_ms=200), 1) as [broker],
        client_of(broker) as client,
    ):
        client.write(struct.pack(">II", 1_000, 500))
        async with asyncio.timeout(60):
            await client.ended.wait()


async def test_many_requests_of_a_connection_wait_their_turn(cluster: ClusterUnderTest) -> None:
    """Beyond the limit a connection is not read; all requests are answered in the end."""
    async with (
        brokers_over(cluster, remoting_config(max_requests_per_connection=2), 1) as [broker],
        client_of(broker) as client,
    ):
        sends = [client.send("orders", b"%d" % number, number % 4) for number in range(40)]
        answers = await asyncio.gather(*sends)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert len(await pulled_from(client, "orders")) == 40


async def test_access_control_lets_nobody_in_without_a_signature(
    cluster: ClusterUnderTest,
) -> None:
    """Signatures of this protocol are not read yet, so every request is refused."""
    strict = BrokerConfig.model_validate(
        {"remoting": {"port": 0}, "access_control": {"mode": "on"}}
    )
    async with brokers_over(cluster, strict, 1) as [broker], client_of(broker) as client:
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            answer = await client.ask(code, {"topic": "orders"})
            assert answer.code == ResponseCode.NO_PERMISSION
        with pytest.raises(RemotingRefusedError) as refused:
            await client.send("orders", b"x")
        assert refused.value.code == ResponseCode.NO_PERMISSION
