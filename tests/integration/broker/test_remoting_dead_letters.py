"""Dead letters of remoting consumers, over two brokers and three storage nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_edge.ports import CallError
from strata_mq.layout import pack_message_id
from strata_mq.requests.names import REDRIVE_GROUP
from strata_mq.slots import rendezvous
from strata_remoting import (
    AdminCode,
    PulledMessage,
    RequestCode,
    ResponseCode,
    decode_properties,
)
from strata_testing.broker.fake_edge import ADMIN
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.integration.broker.cluster_brokers import ClusterBroker, topic_row
from tests.integration.broker.remoting_brokers import (
    GROUP,
    KEY,
    clients,
    pulled_from,
    remoting_cluster,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import config as config
from tests.integration.storage.storage_cluster import ClusterUnderTest

DEAD_LETTERS, RETRIES = f"%DLQ%{GROUP}", f"%RETRY%{GROUP}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in remoting_cluster(tmp_path):
        group = meta_pb2.ConsumerGroup(consumer_group_id=30, name=REDRIVE_GROUP)
        made.stub.write(meta_pb2.Change(consumer_group=group))
        yield made


async def letters(client: RemotingClient) -> list[PulledMessage]:
    """All dead letters, as a remoting consumer of their topic sees them."""
    route = await client.route(DEAD_LETTERS)
    [queues] = route["queueDatas"]
    assert queues["perm"] == 4
    return await pulled_from(client, DEAD_LETTERS, range(queues["readQueueNums"]))


async def send_back(client: RemotingClient, one: PulledMessage, **fields: object) -> None:
    """Send a message back, as the concurrent push consumer of Java does."""
    back = {
        "group": GROUP, "offset": one.physical_offset, "delayLevel": 0, "originMsgId": KEY,
        "originTopic": one.topic, **fields,
    }  # fmt: skip
    await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)


async def test_a_message_without_tries_left_is_a_dead_letter(
    brokers: Sequence[ClusterBroker],
) -> None:
    """With its id, topic, tag and properties; a repeat stores nothing; it can be redriven."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"poison", 0, UNIQ_KEY=KEY, TAGS="a", KEYS="k", color="red")
        [original] = await pulled_from(client, "orders", [0])
        await send_back(client, original, delayLevel=1, maxReconsumeTimes=1)
        _, [again] = await client.pull(RETRIES, GROUP, 0, 0, wait_ms=15_000)
        assert again.reconsume_times == 1
        for _ in range(2):
            await send_back(client, again, maxReconsumeTimes=1)
        [letter] = await letters(client)
        assert (letter.body, letter.topic, letter.reconsume_times) == (b"poison", DEAD_LETTERS, 0)
        properties = decode_properties(letter.properties)
        assert {name: properties[name] for name in ("UNIQ_KEY", "TAGS", "KEYS", "color")} == {
            "UNIQ_KEY": KEY,
            "TAGS": "a",
            "KEYS": "k",
            "color": "red",
        }
        assert properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == KEY
        _, more = await client.pull(RETRIES, GROUP, 0, 1)
        assert more == []

        listed = await brokers[1].edge.call(
            ADMIN + "ListDeadLetters",
            admin_pb2.ListDeadLettersRequest(consumer_group=GROUP, max_messages=10),
            admin_pb2.ListDeadLettersResponse,
        )
        [shown] = listed.dead_letters
        stored = definition_pb2.Message.FromString(shown.stored.message)
        assert (stored.topic.name, stored.system_properties.message_id) == ("orders", KEY)
        redriven = await brokers[1].edge.call(
            ADMIN + "RedriveDeadLetters",
            admin_pb2.RedriveDeadLettersRequest(consumer_group=GROUP, message_id=KEY),
            admin_pb2.RedriveDeadLettersResponse,
        )
        [sent] = redriven.messages
        assert (sent.message_id, sent.topic, sent.error, redriven.waiting) == (KEY, "orders", "", 0)
        found = await pulled_from(client, "orders")
        [back] = [one for one in found if one.queue_offset or one.queue_id]
        assert (back.body, back.reconsume_times) == (b"poison", 0)
        # It may become a dead letter once more.
        await send_back(client, back, delayLevel=-1)
        assert [one.body for one in await letters(client)] == [b"poison"] * 2


async def test_two_messages_with_one_id_are_two_letters(brokers: Sequence[ClusterBroker]) -> None:
    """A producer may send one message object to two queues; neither of them is lost."""
    async with clients(brokers) as [client]:
        for queue in range(2):
            await client.send("orders", b"to-%d" % queue, queue, UNIQ_KEY=KEY)
        originals = await pulled_from(client, "orders", range(2))
        assert len(originals) == 2
        for _ in range(2):
            await asyncio.gather(*(send_back(client, one, delayLevel=-1) for one in originals))
        found = await letters(client)
        assert sorted(one.body for one in found) == [b"to-0", b"to-1"]
        assert {decode_properties(one.properties)["UNIQ_KEY"] for one in found} == {KEY}


async def test_a_letter_is_known_after_a_raft_group_was_added(
    brokers: Sequence[ClusterBroker], cluster: ClusterUnderTest
) -> None:
    """The new raft group would take the repeat of a letter that another one has already."""
    key = next(each for each in map("7F{:032X}".format, range(100)) if preferred(each, (1, 2)) == 2)
    async with clients(brokers) as [client]:
        await client.send("orders", b"poison", 0, UNIQ_KEY=key)
        [original] = await pulled_from(client, "orders", [0])
        row = cluster.stub.groups[2]
        for broker in brokers:
            see(broker, meta_pb2.Change(raft_group=row, deleted=True))
        await send_back(client, original, delayLevel=-1)
        for broker in brokers:
            see(broker, meta_pb2.Change(raft_group=row))
        for _ in range(2):
            await send_back(client, original, delayLevel=-1)
        assert [one.body for one in await letters(client)] == [b"poison"]


async def test_a_group_is_moved_on_single_queues_of_dead_letters(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Each raft group has one queue of them, with its own number, and the topic counts none."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"poison", 0, UNIQ_KEY=KEY)
        [original] = await pulled_from(client, "orders", [0])
        await send_back(client, original, delayLevel=-1)
        for queue_id in range(2):
            place = {"topic": DEAD_LETTERS, "queueId": queue_id, "consumerGroup": GROUP}
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": 0})
        clone = {"srcGroup": GROUP, "destGroup": "ordered", "topic": DEAD_LETTERS}
        await client.call(AdminCode.CLONE_GROUP_OFFSET, clone)
        reset = {"topic": DEAD_LETTERS, "group": GROUP, "queueId": 1, "offset": 0}
        await client.call(AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    with pytest.raises(CallError, match="a queue in each raft group, with its number: 1, 2"):
        await brokers[0].edge.call(
            ADMIN + "ResetConsumerGroup",
            admin_pb2.ResetConsumerGroupRequest(
                name=GROUP, topic=DEAD_LETTERS, queues=[3], earliest=True
            ),
            admin_pb2.ResetConsumerGroupResponse,
        )


async def test_letters_count_in_the_quotas_of_sends(
    brokers: Sequence[ClusterBroker], cluster: ClusterUnderTest
) -> None:
    """A client writes what it likes to a topic of retries; a letter is no way around a quota."""
    cluster.stub.write(meta_pb2.Change(quota=meta_pb2.Quota(bytes_per_s=1)))
    async with clients(brokers) as [client]:
        for broker in brokers:
            assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
        codes, remarks = [], []
        for number in range(3):
            key = f"{KEY[:-1]}{number}"
            fields = send_fields(RETRIES, RETRY_TOPIC="orders", UNIQ_KEY=key) | {"j": 9, "l": 1}
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 100)
            codes.append(answer.code)
            remarks.append(answer.remark)
        assert codes[0] == ResponseCode.SUCCESS
        assert ResponseCode.SUCCESS not in codes[1:], "the first one made a debt of minutes"
        assert "the quota of the default namespace is 1 bytes/s" in remarks[1]
        assert len(await letters(client)) == 1


def preferred(message_id: str, raft_groups: Sequence[int]) -> int:
    """The raft group that a letter goes to."""
    return rendezvous(pack_message_id(message_id), raft_groups)


def see(broker: ClusterBroker, change: meta_pb2.Change) -> None:
    """Let a broker see a change that its storage nodes do not see."""
    view = broker.app.view
    view.apply(meta_pb2.WatchResponse(revision=view.revision, changes=[change]))


async def test_the_tries_of_a_group_count_if_a_client_says_nothing(
    brokers: Sequence[ClusterBroker], cluster: ClusterUnderTest
) -> None:
    """A consumer group with one attempt has no retry."""
    group = meta_pb2.ConsumerGroup(
        consumer_group_id=20, name=GROUP, dead_letter_topic_id=9, max_attempts=1
    )
    cluster.stub.write(meta_pb2.Change(consumer_group=group))
    async with clients(brokers) as [client]:
        for broker in brokers:
            assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
        await client.send("orders", b"once", 1)
        [original] = await pulled_from(client, "orders", [1])
        await send_back(client, original)
        assert [one.body for one in await letters(client)] == [b"once"]


async def test_an_orderly_consumer_gives_up_by_a_send(brokers: Sequence[ClusterBroker]) -> None:
    """With more tries than allowed, or while its group has a lock; else the message comes again."""

    async def give_up(client: RemotingClient, body: bytes, times: int, key: str) -> int:
        fields = send_fields(RETRIES, RETRY_TOPIC="orders", UNIQ_KEY=key, ORIGIN_MESSAGE_ID=key)
        fields |= {"j": times, "l": 3}
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, body)
        return int(answer.fields["queueOffset"])

    async with clients(brokers) as [client]:
        await give_up(client, b"again", 3, KEY)
        assert await letters(client) == []
        assert [one.body for one in await pulled_from(client, RETRIES, [0])] == [b"again"]
        # A client that misses an answer counts one try more.
        first = [await give_up(client, b"over", times, KEY) for times in (4, 4, 5)]
        assert len(set(first)) == 1, "a repeat has the same place"
        name = (await client.route("orders"))["queueDatas"][0]["brokerName"]
        queue = {"topic": "orders", "brokerName": name, "queueId": 1}
        locks = {"consumerGroup": GROUP, "clientId": "me", "mqSet": [queue]}
        await client.call(RequestCode.LOCK_BATCH_MQ, body=json.dumps(locks).encode())
        await give_up(client, b"orderly", 1, KEY[:-1] + "3")
        found = await letters(client)
        assert sorted(one.body for one in found) == [b"orderly", b"over"]
        origins = {decode_properties(one.properties)["DLQ_ORIGIN_TOPIC"] for one in found}
        assert origins == {"orders"}


async def test_a_group_without_a_topic_for_letters_says_so(
    brokers: Sequence[ClusterBroker], cluster: ClusterUnderTest
) -> None:
    """The send is refused; the consumer tries it again later."""
    cluster.stub.write(
        meta_pb2.Change(consumer_group=meta_pb2.ConsumerGroup(consumer_group_id=40, name="bare")),
        meta_pb2.Change(topic=topic_row(41, "%RETRY%bare", meta_pb2.TOPIC_TYPE_MIXED)),
    )
    async with clients(brokers) as [client]:
        for broker in brokers:
            assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
        fields = send_fields("%RETRY%bare", RETRY_TOPIC="orders") | {"j": 9, "l": 1}
        refused = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "topic[%DLQ%bare] not exist",
        )
