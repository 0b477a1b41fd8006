"""Traces that remoting clients make by themselves: wanted once there is a topic for them."""

from __future__ import annotations

from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_mq.requests import TRACE_TOPIC
from strata_remoting import RequestCode, decode_properties
from strata_testing import until
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.integration.broker.cluster_brokers import ClusterBroker, topic_row
from tests.integration.broker.remoting_brokers import GROUP, clients
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config
from tests.integration.storage.storage_cluster import ClusterUnderTest

TRACES = 77


async def regions(client: RemotingClient) -> set[str | None]:
    """Pull and pop; return the regions that the messages name."""
    _, pulled = await client.pull("orders", GROUP, 0, 0)
    _, popped = await client.pop("orders", GROUP, queue=0, invisible_ms=1, wait_ms=5_000)
    assert pulled
    assert popped
    return {decode_properties(one.properties).get("MSG_REGION") for one in (*pulled, *popped)}


async def test_clients_make_traces_once_there_is_a_topic_for_them(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """Before, neither producers nor consumers try; then traces are messages as any others."""
    async with clients(brokers) as [client]:
        before = await client.send("orders", b"x", 0)
        assert before.fields["TRACE_ON"] == "false"
        assert await regions(client) == {None}
        cluster.stub.write(
            meta_pb2.Change(topic=topic_row(TRACES, TRACE_TOPIC, meta_pb2.TOPIC_TYPE_NORMAL))
        )
        await until(
            lambda: all(broker.app.view.topic("", TRACE_TOPIC) is not None for broker in brokers)
        )
        after = await client.send("orders", b"y", 0)
        assert "TRACE_ON" not in after.fields
        assert await regions(client) == {"DefaultRegion"}
        assert (await client.route(TRACE_TOPIC))["queueDatas"]
        fields = send_fields(TRACE_TOPIC, 0, KEYS="ID1 key1")
        await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"Pub\x01")
        _, [trace] = await client.pull(TRACE_TOPIC, GROUP, 0, 0)
        assert trace.body == b"Pub\x01"
        assert decode_properties(trace.properties)["KEYS"] == "ID1 key1"
