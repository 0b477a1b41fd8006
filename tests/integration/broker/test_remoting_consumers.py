"""Remoting consumers over two brokers and three storage nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from strata_remoting import (
    AdminCode,
    RequestCode,
    ResponseCode,
    decode_properties,
)
from strata_testing import until
from strata_testing.broker.client import id_of, message
from tests.integration.broker.cluster_brokers import ClusterBroker
from tests.integration.broker.remoting_brokers import (
    GROUP,
    KEY,
    client_of,
    clients,
    pulled_from,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config


async def test_a_remoting_consumer_gets_what_a_grpc_producer_sent(
    brokers: Sequence[ClusterBroker],
) -> None:
    """All fields of the stored form; ids of all messages are the producers'."""
    sent = message("orders", 1, body=b"from gRPC", tag="t", keys=["a", "b"])
    sent.user_properties["color"] = "blue"
    await brokers[0].client.send(sent)
    async with clients(brokers) as [client]:
        [one] = await pulled_from(client, "orders")
    assert (one.topic, one.body, one.queue_offset, one.reconsume_times) == (
        "orders",
        b"from gRPC",
        0,
        0,
    )
    assert decode_properties(one.properties) == {
        "UNIQ_KEY": id_of(1),
        "TAGS": "t",
        "KEYS": "a b",
        "color": "blue",
    }
    assert one.store.host == bytes(map(int, client.host.split(".")))
    assert one.stored_ms > one.born_ms == 1_700_000_000_000


async def test_a_pull_waits_and_is_woken_by_a_message(brokers: Sequence[ClusterBroker]) -> None:
    """A parked pull does not hold up other requests of its connection."""
    async with clients(brokers) as [client]:
        waiting = asyncio.ensure_future(client.pull("orders", GROUP, 0, 0, wait_ms=15_000))
        await asyncio.sleep(0)
        await client.send("orders", b"news", 0)
        answer, [one] = await waiting
    assert (answer.code, one.body) == (ResponseCode.SUCCESS, b"news")
    assert {
        name: answer.fields[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")
    } == {
        "nextBeginOffset": "1",
        "minOffset": "0",
        "maxOffset": "1",
    }


async def test_what_a_pull_without_messages_says(brokers: Sequence[ClusterBroker]) -> None:
    """Nothing new, nothing that matches, or an offset that the queue does not have."""
    async with clients(brokers) as [client]:
        answer, _ = await client.pull("orders", GROUP, 0, 0)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        await client.send("orders", b"x", 0, TAGS="a")
        answer, _ = await client.pull("orders", GROUP, 0, 0, tags="b")
        assert (answer.code, answer.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "1",
        )
        answer, _ = await client.pull("orders", GROUP, 0, 9)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "1",
        )
        answer, found = await client.pull("orders", GROUP, 0, 0, tags="a || c")
        assert (answer.code, len(found)) == (ResponseCode.SUCCESS, 1)
        answer, _ = await client.pull("absent", GROUP, 0, 0)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_subscription_comes_with_heartbeats(brokers: Sequence[ClusterBroker]) -> None:
    """A pull without an expression uses the heartbeat's; before a heartbeat there is none."""
    fields = {
        "consumerGroup": GROUP, "topic": "orders", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subVersion": 0,
    }  # fmt: skip
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 0, TAGS="a")
        answer = await client.ask(RequestCode.PULL_MESSAGE, fields)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.heartbeat("me", GROUP, {"orders": "b"})
        answer = await client.ask(RequestCode.PULL_MESSAGE, fields)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        await client.heartbeat("me", GROUP, {"orders": "a"})
        answer = await client.ask(RequestCode.PULL_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS


async def test_offsets_are_stored_and_shared_with_grpc(brokers: Sequence[ClusterBroker]) -> None:
    """A new group starts at 0; a stored offset is found at every broker and moves the group."""
    queue = {"topic": "orders", "queueId": 0}
    of_group = {**queue, "consumerGroup": GROUP}
    async with clients(brokers) as [client], client_of(brokers[1]) as other:
        found = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, of_group)
        assert found.fields["offset"] == "0"
        unknown = await client.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, {**of_group, "setZeroIfNotFound": "false"}
        )
        assert unknown.code == ResponseCode.QUERY_NOT_FOUND
        for number in range(3):
            await client.send("orders", b"%d" % number, 0)
        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**of_group, "commitOffset": 2})
        for asked in (client, other):
            found = await asked.call(RequestCode.QUERY_CONSUMER_OFFSET, of_group)
            assert found.fields["offset"] == "2"
        ends = [
            (await client.call(code, {**queue, "timestamp": 0})).fields["offset"]
            for code in (
                RequestCode.GET_MIN_OFFSET,
                RequestCode.GET_MAX_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            )
        ]
        assert ends == ["0", "3", "0"]
        never = {**queue, "timestamp": (1 << 63) - 1}
        behind = await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, never)
        assert behind.fields["offset"] == "3", "a time that has not come yet"
    _, got = await brokers[0].client.receive("orders", GROUP, broker="strata-1", polling_s=5)
    assert [one.body for one in got] == [b"2"]


async def test_members_know_each_other(brokers: Sequence[ClusterBroker]) -> None:
    """Members are listed, told of changes, and forgotten with their connection."""
    asked = {"consumerGroup": GROUP}
    async with clients(brokers, 2) as [first, second]:
        nobody = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        assert (nobody.code, nobody.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "no consumer for this group, g",
        )
        await first.heartbeat("one", GROUP, {"orders": "*"})
        await second.heartbeat("two", GROUP, {"orders": "*"})
        answer = await first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        assert json.loads(answer.body) == {"consumerIdList": ["one", "two"]}
        # The second change follows the first one quickly: it is told after a pause.
        await until(lambda: len(first.told) == 2)
        assert (first.told[-1].code, first.told[-1].fields) == (
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            asked,
        )
        told = len(first.told)
        await second.__aexit__()
        await until(lambda: len(first.told) > told)
        answer = await first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        assert json.loads(answer.body) == {"consumerIdList": ["one"]}
        await first.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", **asked})
        nobody = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        assert nobody.code == ResponseCode.SYSTEM_ERROR


async def test_one_client_has_the_lock_of_a_queue(brokers: Sequence[ClusterBroker]) -> None:
    """A second client gets the lock when the first one has given it back."""
    async with clients(brokers) as [client]:
        name = (await client.route("orders"))["queueDatas"][0]["brokerName"]
        queue = {"topic": "orders", "brokerName": name, "queueId": 1}

        async def ask(code: RequestCode, client_id: str) -> Any:
            body = {"consumerGroup": GROUP, "clientId": client_id, "mqSet": [queue]}
            answer = await client.call(code, body=json.dumps(body).encode())
            return json.loads(answer.body)["lockOKMQSet"] if answer.body else None

        assert await ask(RequestCode.LOCK_BATCH_MQ, "one") == [queue]
        assert await ask(RequestCode.LOCK_BATCH_MQ, "two") == []
        await ask(RequestCode.UNLOCK_BATCH_MQ, "two")
        assert await ask(RequestCode.LOCK_BATCH_MQ, "two") == []
        await ask(RequestCode.UNLOCK_BATCH_MQ, "one")
        assert await ask(RequestCode.LOCK_BATCH_MQ, "two") == [queue]


def sent_back(physical_offset: int) -> dict[str, Any]:
    """Return the fields with which a consumer gives a message of `orders` back."""
    return {
        "group": GROUP, "offset": physical_offset, "delayLevel": 1,
        "originMsgId": KEY, "originTopic": "orders", "maxReconsumeTimes": 16,
    }  # fmt: skip


async def test_a_message_that_is_sent_back_comes_again(brokers: Sequence[ClusterBroker]) -> None:
    """With its id, its former topic and the number of attempts; a repeat stores nothing twice."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"again", 0, UNIQ_KEY=KEY, TAGS="a", color="red")
        [original] = await pulled_from(client, "orders", [0])
        back = sent_back(original.physical_offset)
        for _ in range(2):
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        _, [first] = await client.pull("%RETRY%g", GROUP, 0, 0, wait_ms=15_000)
        assert (first.body, first.reconsume_times) == (b"again", 1)
        properties = decode_properties(first.properties)
        kept = [properties[name] for name in ("UNIQ_KEY", "RETRY_TOPIC", "TAGS", "color")]
        assert kept == [KEY, "orders", "a", "red"]
        await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, sent_back(first.physical_offset))
        _, [second] = await client.pull("%RETRY%g", GROUP, 0, 1, wait_ms=15_000)
        assert (second.queue_offset, second.reconsume_times) == (1, 2)
        assert decode_properties(second.properties)["RETRY_TOPIC"] == "orders"
        gone = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, sent_back(3 << 61))
        assert (gone.code, gone.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {3 << 61}",
        )


async def test_a_message_that_fails_once_more_after_a_reset_comes_again(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Its first copy is consumed; until then, each repeat of the request is of that copy."""
    retries = {"topic": "%RETRY%g", "queueId": 0, "consumerGroup": GROUP}
    async with clients(brokers) as [client]:
        await client.send("orders", b"again", 0, UNIQ_KEY=KEY)
        [original] = await pulled_from(client, "orders", [0])
        back = sent_back(original.physical_offset)
        for number in range(3):
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            _, copies = await client.pull("%RETRY%g", GROUP, 0, number, wait_ms=15_000)
            assert [(copy.body, copy.queue_offset) for copy in copies] == [(b"again", number)]
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            position = {**retries, "commitOffset": number + 1}
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, position)
            reset = {"topic": "orders", "group": GROUP, "timestamp": 0, "isForce": "true"}
            await client.call(AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
            assert await pulled_from(client, "orders", [0]) == [original]
        end = await client.call(RequestCode.GET_MAX_OFFSET, retries)
        assert end.fields["offset"] == "3"
