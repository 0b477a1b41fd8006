"""Requests of operators' tools over two brokers and three nodes, as `mqadmin` sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from strata_broker.base.config import BrokerConfig
from strata_broker.remoting.addresses import broker_name_of, broker_names
from strata_remoting import (
    AdminCode,
    RequestCode,
    ResponseCode,
    decode_messages,
    decode_properties,
)
from strata_testing.broker.client import message
from strata_testing.remoting_client import RemotingClient, RemotingRefusedError
from tests.integration.broker.cluster_brokers import ClusterBroker, brokers_over
from tests.integration.broker.remoting_brokers import (
    GROUP,
    KEY,
    client_of,
    clients,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config
from tests.integration.storage.storage_cluster import ClusterUnderTest

_OBJECT_KEY = re.compile(r"([{,])(\{[^{}]*\}):")


_REFUSALS: Sequence[tuple[AdminCode, Mapping[str, object], ResponseCode, str]] = (
    (
        AdminCode.UPDATE_BROKER_CONFIG,
        {},
        ResponseCode.NO_PERMISSION,
        "not supported by StrataMQ: a broker reads its configuration at its start",
    ),
    (
        AdminCode.WIPE_WRITE_PERM_OF_BROKER,
        {"brokerName": "strata-r00"},
        ResponseCode.NO_PERMISSION,
        "not supported by StrataMQ: a broker name stands for topics here",
    ),
    (
        AdminCode.GET_TOPIC_STATS_INFO,
        {"topic": "nosuch"},
        ResponseCode.TOPIC_NOT_EXIST,
        "topic[nosuch] not exist",
    ),
    (
        AdminCode.GET_CONSUME_STATS,
        {"consumerGroup": "nosuch"},
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "subscription group not exist: nosuch",
    ),
    (
        AdminCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": GROUP, "topic": "nosuch", "timestamp": 0},
        ResponseCode.TOPIC_NOT_EXIST,
        "The topic nosuch does not exist",
    ),
    (
        AdminCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "nosuch", "topic": "orders", "timestamp": 0},
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "subscription group not exist: nosuch",
    ),
    (
        AdminCode.DELETE_TOPIC_IN_NAMESRV,
        {"topic": "orders"},
        ResponseCode.SYSTEM_ERROR,
        "topic orders exists: its route goes with the topic",
    ),
    (
        AdminCode.VIEW_BROKER_STATS_DATA,
        {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@g"},
        ResponseCode.SYSTEM_ERROR,
        "The stats <GROUP_GET_NUMS> <orders@g> not exist",
    ),
    (AdminCode.VIEW_MESSAGE_BY_ID, {}, ResponseCode.SYSTEM_ERROR, "the field offset is miss"),
    (
        AdminCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        ResponseCode.SYSTEM_ERROR,
        "the body is no JSON",
    ),
)


def read(body: bytes) -> Any:
    """A body in Java's JSON; a queue as a key becomes the number of the queue."""

    def numbered(found: re.Match[str]) -> str:
        return f'{found[1]}"{json.loads(found[2])["queueId"]}":'

    return json.loads(_OBJECT_KEY.sub(numbered, body.decode()))


async def ask(
    client: RemotingClient, code: AdminCode, fields: Mapping[str, object] | None = None
) -> Any:
    """The body of a successful answer."""
    return read((await client.call(code, fields)).body)


async def test_topics_are_listed_and_described(brokers: Sequence[ClusterBroker]) -> None:
    """All topics and the topics of retries of all groups; offsets of each queue; settings."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"one", 2)
        listed = await ask(client, AdminCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert {"orders", "fifo", "%DLQ%g", "%RETRY%g", "%RETRY%ordered"} <= set(
            listed["topicList"]
        )
        of_cluster = await ask(
            client, AdminCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}
        )
        assert {"orders", "fifo"} <= set(of_cluster["topicList"])
        other = await ask(client, AdminCode.GET_TOPICS_BY_CLUSTER, {"cluster": "other"})
        assert other["topicList"] == []

        stats = await ask(client, AdminCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
        ends = {queue: one["maxOffset"] for queue, one in stats["offsetTable"].items()}
        assert ends == {"0": 0, "1": 0, "2": 1, "3": 0}
        assert stats["offsetTable"]["2"]["lastUpdateTimestamp"] > 0
        config = await ask(client, AdminCode.GET_TOPIC_CONFIG, {"topic": "fifo"})
        assert (config["writeQueueNums"], config["attributes"]) == (4, {"message.type": "FIFO"})
        counts = await ask(
            client,
            AdminCode.VIEW_BROKER_STATS_DATA,
            {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"},
        )
        assert [counts[field]["sum"] for field in ("statsMinute", "statsDay")] == [1, 1]


async def test_tables_of_all_brokers_together_have_each_topic_once(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Tools add up what they get from each broker; groups are the same everywhere."""
    found: list[str] = []
    for broker in brokers:
        async with client_of(broker) as client:
            topics = await ask(client, AdminCode.GET_ALL_TOPIC_CONFIG)
            found += topics["topicConfigTable"]
            groups = await ask(client, AdminCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert {"g", "ordered"} <= set(groups["subscriptionGroupTable"])
    assert len(found) == len(set(found))
    assert {"orders", "fifo"} <= set(found)


async def test_progress_follows_consumers_and_resets(brokers: Sequence[ClusterBroker]) -> None:
    """Positions of both protocols, a reset forced and one that only goes back, one queue."""
    async with clients(brokers) as [client]:
        for number in range(3):
            await client.send("orders", b"%d" % number, 1)
        reset = {"group": GROUP, "topic": "orders", "timestamp": -1, "isForce": "true"}
        moved = await ask(client, AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert moved["offsetTable"] == {"0": 0, "1": 3, "2": 0, "3": 0}

        stats = await ask(
            client, AdminCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": "orders"}
        )
        one = stats["offsetTable"]["1"]
        assert (one["brokerOffset"], one["consumerOffset"]) == (3, 3)
        assert one["lastTimestamp"] > 0

        back = {**reset, "timestamp": 0, "isForce": "false"}
        moved = await ask(client, AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, back)
        assert moved["offsetTable"] == {"1": 0}
        forward = {**reset, "isForce": "false"}
        moved = await ask(client, AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, forward)
        assert moved["offsetTable"] == {}
        queue = {**forward, "queueId": 1, "offset": 2}
        moved = await ask(client, AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, queue)
        assert moved["offsetTable"] == {"1": 2}

        copied = {"srcGroup": GROUP, "destGroup": "ordered", "topic": "orders"}
        await client.call(AdminCode.CLONE_GROUP_OFFSET, copied)
        stats = await ask(client, AdminCode.GET_CONSUME_STATS, {"consumerGroup": "ordered"})
        assert stats["offsetTable"]["1"]["consumerOffset"] == 2
        who = await ask(client, AdminCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
        assert who["groupList"] == [GROUP, "ordered"]
        spans = await ask(
            client, AdminCode.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": GROUP}
        )
        assert len(spans["consumeTimeSpanSet"]) == 4
        every = await ask(client, AdminCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert every["totalDiff"] == 2


async def test_messages_are_found_by_key_id_and_place(brokers: Sequence[ClusterBroker]) -> None:
    """In the stored form, whichever way; what is not there is said so."""
    async with clients(brokers) as [client]:
        sent = await client.send("orders", b"one", 3, KEYS="k1 k2", TAGS="t", UNIQ_KEY=KEY)
        query = {"topic": "orders", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        for fields in ({"key": "k2"}, {"key": KEY, "_UNIQUE_KEY_QUERY": "true"}):
            answer = await client.call(AdminCode.QUERY_MESSAGE, {**query, **fields})
            [one] = decode_messages(answer.body)
            assert (one.body, one.queue_id, one.queue_offset) == (b"one", 3, 0)
            assert decode_properties(one.properties)["KEYS"] == "k1 k2"
            assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
        physical = int(sent.fields["msgId"][-16:], 16)
        answer = await client.call(AdminCode.VIEW_MESSAGE_BY_ID, {"offset": physical})
        [one] = decode_messages(answer.body)
        assert (one.body, one.physical_offset) == (b"one", physical)
        first = await client.call(
            AdminCode.GET_EARLIEST_MSG_STORETIME, {"topic": "orders", "queueId": 3}
        )
        assert int(first.fields["timestamp"]) == one.stored_ms
        none = await client.call(
            AdminCode.GET_EARLIEST_MSG_STORETIME, {"topic": "orders", "queueId": 0}
        )
        assert none.fields["timestamp"] == "-1"

        missing = await client.ask(AdminCode.QUERY_MESSAGE, {**query, "key": "other"})
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        nowhere = await client.ask(AdminCode.VIEW_MESSAGE_BY_ID, {"offset": physical + 1})
        assert nowhere.code == ResponseCode.SYSTEM_ERROR
        assert nowhere.remark == f"can not find message by the offset, {physical + 1}"


async def test_connected_clients_are_shown(brokers: Sequence[ClusterBroker]) -> None:
    """Consumers with address and subscription, producers by group; gRPC producers by topic."""
    async with clients(brokers, 2) as [client, tool]:
        await client.heartbeat("c-1", GROUP, {"orders": "a || b"})
        group = {"consumerGroup": GROUP}
        shown = await ask(tool, AdminCode.GET_CONSUMER_CONNECTION_LIST, group)
        [one] = shown["connectionSet"]
        assert (one["clientId"], one["language"]) == ("c-1", "JAVA")
        assert one["clientAddr"].startswith("127.0.0.1:")
        assert shown["subscriptionTable"]["orders"]["tagsSet"] == ["a", "b"]
        info = await ask(tool, AdminCode.GET_CONSUMER_RUNNING_INFO, {**group, "clientId": "c-1"})
        assert [row["topic"] for row in info["subscriptionSet"]] == ["orders"]

        producer = {"clientID": "p-1", "producerDataSet": [{"groupName": "makers"}]}
        await tool.call(RequestCode.HEART_BEAT, body=json.dumps(producer).encode())
        found = await ask(tool, AdminCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "makers"})
        assert [row["clientId"] for row in found["connectionSet"]] == ["p-1"]
        every = await ask(tool, AdminCode.GET_ALL_PRODUCER_INFO)
        assert [row["remoteIP"] for row in every["data"]["makers"]] == ["127.0.0.1"]

        offline = await tool.ask(
            AdminCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "ordered"}
        )
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        nobody = await tool.ask(AdminCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"})
        assert nobody.remark == "the producer group[nobody] not exist"
        absent = await tool.ask(AdminCode.GET_CONSUMER_RUNNING_INFO, {**group, "clientId": "c-2"})
        assert absent.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_look_at_a_group_makes_no_topic(brokers: Sequence[ClusterBroker]) -> None:
    """Nor a group: routes of retries are known before; a consumer's heartbeat makes both."""
    async with client_of(brokers[0]) as client:
        route = await client.route("%RETRY%ordered")
        assert route["queueDatas"][0]["brokerName"] == broker_name_of("%RETRY%ordered")
        assert brokers[0].app.view.topic("", "%RETRY%ordered") is None
        assert await client.route("%RETRY%nobody")
        assert brokers[0].app.view.consumer_group("", "nobody") is None
        nobody = await client.ask(AdminCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"})
        assert nobody.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_broker_tells_of_itself(brokers: Sequence[ClusterBroker]) -> None:
    """Load and configuration, under RocketMQ's names."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"one", 0)
        table = (await ask(client, AdminCode.GET_BROKER_RUNTIME_INFO))["table"]
        rates = ("getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps")
        assert [float(table[name]) for name in rates] == [0.0] * 4
        assert (table["brokerActive"], table["msgPutTotalTodayNow"]) == ("true", "1")
        assert table["brokerVersionDesc"].startswith("StrataMQ ")
        for code in (AdminCode.GET_BROKER_CONFIG, AdminCode.GET_NAMESRV_CONFIG):
            answer = await client.call(code)
            lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
            assert lines["brokerClusterName"] == "DefaultCluster"
            assert lines["listenPort"] == lines["namesrvAddr"].rpartition(":")[2]
        system = await ask(client, AdminCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert system["topicList"] == ["DefaultCluster", *broker_names()]


async def test_requests_that_are_refused(brokers: Sequence[ClusterBroker]) -> None:
    """Each with a code that tools know and the reason; the connection lives on."""
    async with client_of(brokers[0]) as client:
        for code, fields, answered, text in _REFUSALS:
            answer = await client.ask(code, fields)
            assert (answer.code, answer.remark[: len(text)]) == (answered, text)
        assert await client.route("orders")


async def test_what_does_not_exist_is_deleted(brokers: Sequence[ClusterBroker]) -> None:
    """Tools ask every broker of a cluster to delete; the first one has done it."""
    async with client_of(brokers[0]) as client:
        for code, fields in (
            (AdminCode.DELETE_TOPIC_IN_BROKER, {"topic": "nosuch"}),
            (AdminCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "nosuch"}),
            (AdminCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nosuch"}),
            (AdminCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "K"}),
        ):
            assert (await client.call(code, fields)).code == ResponseCode.SUCCESS


async def test_grpc_consumers_are_shown(brokers: Sequence[ClusterBroker]) -> None:
    """A tool of the older protocol sees the clients of the newer one."""
    await brokers[0].client.send(message("orders", 1))
    async with client_of(brokers[0]) as client:
        listed = await client.ask(AdminCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
        assert listed.code == ResponseCode.CONSUMER_NOT_ONLINE
        await brokers[0].client.receive_all("orders", GROUP, polling_s=0)
        shown = await ask(client, AdminCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
        assert shown["subscriptionTable"]["orders"]["subString"] == "*"


async def test_one_client_with_a_broken_text_does_not_hide_the_others(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Half of a surrogate pair in a heartbeat is refused; members and producers are shown on."""
    half = "a text in the body is no UTF-8: half of a surrogate pair"
    async with client_of(brokers[0]) as good, client_of(brokers[0]) as bad:
        await good.heartbeat("good@1", GROUP, {"orders": "*"}, producers=["makers"])
        for client_id, expressions, producers in (
            ("bad\ud800", {"orders": "*"}, ()),
            ("bad@1", {"orders": "\ud800"}, ()),
            ("bad@1", {"\udfff": "*"}, ()),
            ("bad@1", {"orders": "*"}, ("\ud800",)),
        ):
            with pytest.raises(RemotingRefusedError, match=half):
                await bad.heartbeat(client_id, GROUP, expressions, producers=producers)
        shown = await ask(good, AdminCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
        assert [one["clientId"] for one in shown["connectionSet"]] == ["good@1"]
        assert list(shown["subscriptionTable"]) == ["orders"]
        assert list((await ask(good, AdminCode.GET_ALL_PRODUCER_INFO))["data"]) == ["makers"]


async def test_access_control_refuses_operators_without_a_signature(
    cluster: ClusterUnderTest,
) -> None:
    """Every request, those that only look too."""
    strict = BrokerConfig.model_validate(
        {"remoting": {"port": 0}, "access_control": {"mode": "on"}}
    )
    async with brokers_over(cluster, strict, 1) as [broker], client_of(broker) as client:
        # Brokers alone make this request.
        for code in set(AdminCode) - {AdminCode.RESET_CONSUMER_CLIENT_OFFSET}:
            answer = await client.ask(code, {"topic": "orders", "group": GROUP})
            assert answer.code == ResponseCode.NO_PERMISSION, code
            assert "not supported by StrataMQ" not in answer.remark, code
