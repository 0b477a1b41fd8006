"""Remoting consumers that pop, over two brokers and three storage nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.assignments import averagely, by_circle
from strata_remoting import (
    PulledMessage,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialization,
    decode_properties,
    encode_frame,
)
from strata_testing import until
from strata_testing.broker.broker import waiting_receives
from strata_testing.remoting_client import RemotingClient, popped_fields
from tests.integration.broker.cluster_brokers import ClusterBroker, brokers_over
from tests.integration.broker.remoting_brokers import (
    GROUP,
    client_of,
    clients,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config
from tests.integration.storage.storage_cluster import ClusterUnderTest

QUEUES = 4
ORDERED = "ordered"


def info_of(message: PulledMessage) -> str:
    """The extra info of a popped message."""
    return decode_properties(message.properties)["POP_CK"]


async def popped(client: RemotingClient, count: int, **fields: Any) -> list[PulledMessage]:
    """Pop until there are so many messages."""
    found: list[PulledMessage] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            _, messages = await client.pop("orders", GROUP, wait_ms=5_000, **fields)
            found += messages
    return found


async def test_popped_messages_are_acked_once(brokers: Sequence[ClusterBroker]) -> None:
    """The extra info has RocketMQ's eight words; acked messages never come again."""
    async with clients(brokers) as [client]:
        for number in range(8):
            await client.send("orders", b"%d" % number, number % QUEUES, TAGS="t")
        messages = await popped(client, 8)
        assert sorted(one.body for one in messages) == [b"%d" % number for number in range(8)]
        for one in messages:
            words = info_of(one).split(" ")
            assert words[5:8] == [
                broker_name_of("orders"),
                str(one.queue_id),
                str(one.queue_offset),
            ]
            assert (words[2], words[4], len(words)) == ("60000", "0", 9)
            assert one.reconsume_times == 0
            answer = await client.ack_pop(GROUP, one)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        answer, nothing = await client.pop("orders", GROUP)
        assert (answer.code, nothing) == (ResponseCode.POLLING_TIMEOUT, [])
        assert answer.fields["restNum"] == "0"


async def test_the_answer_names_offsets_by_queue(brokers: Sequence[ClusterBroker]) -> None:
    """Clients that build the extra info by themselves find each queue and its offsets."""
    async with clients(brokers) as [client]:
        for _ in range(3):
            await client.send("orders", b"x", 1)
        answer, messages = await client.pop("orders", GROUP, queue=1)
        assert len(messages) == 3
        assert answer.fields["startOffsetInfo"] == "0 1 0"
        assert answer.fields["msgOffsetInfo"] == "0 1 0,1,2"


async def test_a_pop_that_wants_no_answer_leases_nothing(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Nobody would have its messages until their leases end."""
    fields = {"consumerGroup": GROUP, "topic": "orders", "queueId": "-1", "maxMsgNums": "32"}
    fields |= {"invisibleTime": "60000", "pollTime": "0"}
    silent = RemotingCommand(RequestCode.POP_MESSAGE, fields=fields).oneway()
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 1)
        client.write(encode_frame(silent, Serialization.JSON))
        await client.send("orders", b"y", 1)
        assert [one.body for one in await popped(client, 2)] == [b"x", b"y"]


async def test_a_pop_of_one_queue_takes_of_it_alone(brokers: Sequence[ClusterBroker]) -> None:
    """A queue that the topic does not have is refused."""
    async with clients(brokers) as [client]:
        for queue in range(QUEUES):
            await client.send("orders", b"%d" % queue, queue)
        for queue in (3, 1):
            _, [one] = await client.pop("orders", GROUP, queue=queue)
            assert (one.body, one.queue_id) == (b"%d" % queue, queue)
        answer, _ = await client.pop("orders", GROUP, queue=9)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "queueId[9] is illegal, topic:[orders] topicConfig.readQueueNums:[4]",
        )


async def test_a_pop_waits_for_messages(brokers: Sequence[ClusterBroker]) -> None:
    """And takes only those that match its expression."""
    async with clients(brokers) as [client]:
        waiting = asyncio.ensure_future(client.pop("orders", GROUP, wait_ms=15_000, exp="a || b"))
        await client.send("orders", b"other", 0, TAGS="c")
        await client.send("orders", b"news", 0, TAGS="b")
        answer, [one] = await waiting
        assert (answer.code, one.body) == (ResponseCode.SUCCESS, b"news")


async def test_a_message_that_is_not_acked_comes_again(brokers: Sequence[ClusterBroker]) -> None:
    """With the next count, and its earlier extra info acks nothing any more."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 0)
        [first] = await popped(client, 1, invisible_ms=300)
        [again] = await popped(client, 1)
        assert (again.body, again.reconsume_times) == (b"x", 1)
        late = await client.ack_pop(GROUP, first)
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert (await client.ack_pop(GROUP, again)).code == ResponseCode.SUCCESS


async def test_the_invisible_time_can_change(brokers: Sequence[ClusterBroker]) -> None:
    """A shorter one brings the message back; the new extra info acks it, until then."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 2)
        [first] = await popped(client, 1)
        answer = await client.change_pop(GROUP, first, 0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert (answer.fields["invisibleTime"], answer.fields["reviveQid"]) == ("0", "0")
        [again] = await popped(client, 1)
        assert again.reconsume_times == 1
        longer = await client.change_pop(GROUP, again, 60_000)
        acked = await client.ack_pop(GROUP, again, longer.fields["extraInfo"])
        assert acked.code == ResponseCode.SUCCESS, acked.remark
        too_long = await client.change_pop(GROUP, again, 1 << 40)
        assert too_long.code == ResponseCode.SYSTEM_ERROR
        assert "invisibleTime is too large" in too_long.remark


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rpartition(" ")[0],
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text + " more",
        lambda text: "x" * 10_000,
    ],
    ids=["no handle", "another handle", "a tenth word", "too long"],
)
async def test_a_forged_extra_info_acks_nothing(
    brokers: Sequence[ClusterBroker], change: Any
) -> None:
    """A client that knows all of RocketMQ's words cannot ack without the broker's handle."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 0)
        [one] = await popped(client, 1)
        answer = await client.ack_pop(GROUP, one, change(info_of(one)))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        # Another group's name does not help, nor another topic's.
        other = await client.ack_pop(ORDERED, one)
        assert other.code == ResponseCode.ILLEGAL_OPERATION
        other = await client.ack_pop(GROUP, replace(one, topic="fifo"), info_of(one))
        assert other.code == ResponseCode.ILLEGAL_OPERATION
        assert (await client.ack_pop(GROUP, one)).code == ResponseCode.SUCCESS


async def test_both_protocols_share_a_group(brokers: Sequence[ClusterBroker]) -> None:
    """A message that a gRPC consumer has is not popped; its ack counts for both."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 0)
        [got] = await brokers[1].client.receive_all("orders", GROUP, polling_s=1)
        answer, _ = await client.pop("orders", GROUP)
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        await brokers[1].client.ack("orders", GROUP, got.system_properties.receipt_handle)
        await client.send("orders", b"y", 0)
        [one] = await popped(client, 1)
        assert one.body == b"y"


async def test_what_a_client_that_has_gone_would_get_is_given_back(
    brokers: Sequence[ClusterBroker],
) -> None:
    """A message that comes after its end is another client's at once, without an attempt."""
    # The codes of these requests do not fit into the second form of headers.
    async with clients(brokers, 3) as [gone, _, other]:
        waiting = asyncio.ensure_future(gone.pop("orders", GROUP, wait_ms=15_000))
        # Requests of a connection begin in order.
        await gone.route("orders")
        await gone.__aexit__()
        with pytest.raises(ConnectionResetError):
            await waiting
        await other.send("orders", b"x", 0)
        [one] = await popped(other, 1)
        assert (one.body, one.reconsume_times) == (b"x", 0)


async def test_an_ordered_pop_needs_an_ordered_group(brokers: Sequence[ClusterBroker]) -> None:
    """A queue of an ordered group waits for the ack; a repeated attempt gets the same again."""
    async with clients(brokers, topic="fifo") as [client]:
        for number in range(2):
            await client.send("fifo", b"%d" % number, 0)
        answer, _ = await client.pop("fifo", GROUP, order="true")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "not ordered" in answer.remark
        again: dict[str, Any] = {"order": "true", "attemptId": "first", "maxMsgNums": 1}
        _, [one] = await client.pop("fifo", ORDERED, **again)
        answer, _ = await client.pop("fifo", ORDERED, order="true")
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        _, [repeated] = await client.pop("fifo", ORDERED, **again)
        assert (one.body, repeated.body) == (b"0", b"0")
        assert (await client.ack_pop(ORDERED, repeated)).code == ResponseCode.SUCCESS
        _, [second] = await client.pop("fifo", ORDERED, order="true")
        assert second.body == b"1"


async def assigned(
    client: RemotingClient, client_id: str, topic: str = "orders", group: str = GROUP, **more: str
) -> Any:
    """The queue ids and modes that a member is told; None: nothing."""
    body = {
        "topic": topic, "consumerGroup": group, "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING", **more,
    }  # fmt: skip
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())
    found = json.loads(answer.body).get("messageQueueAssignments")
    if found is None:
        return None
    return {one["mode"]: [each["messageQueue"]["queueId"] for each in found] for one in found}


async def test_queues_of_pulled_topics_are_divided(brokers: Sequence[ClusterBroker]) -> None:
    """Between the members that have told of themselves; a broadcast consumer has them all."""
    async with clients(brokers, 2) as [first, second]:
        assert await assigned(first, "a") is None
        await first.heartbeat("a", GROUP, {"orders": "*"})
        assert await assigned(first, "a") == {"PULL": [0, 1, 2, 3]}
        await second.heartbeat("b", GROUP, {"orders": "*"})
        assert await assigned(first, "a") == {"PULL": [0, 1]}
        assert await assigned(second, "b") == {"PULL": [2, 3]}
        circle = await assigned(second, "b", strategyName="AVG_BY_CIRCLE")
        assert circle == {"PULL": [1, 3]}
        every = await assigned(second, "b", messageModel="BROADCASTING")
        assert every == {"PULL": [0, 1, 2, 3]}
        body = {"topic": "orders", "consumerGroup": GROUP, "clientId": "b", "strategyName": "HASH"}
        answer = await first.ask(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'HASH' is not known" in answer.remark


@pytest.mark.parametrize("strategy", [averagely, by_circle])
@pytest.mark.parametrize(("members", "queues"), [(1, 4), (3, 8), (3, 3), (5, 2), (7, 64)])
def test_a_strategy_gives_each_queue_to_one_member(
    strategy: Any, members: int, queues: int
) -> None:
    """And no member has more than one queue more than another."""
    shares = [list(strategy(index, members, queues)) for index in range(members)]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


async def test_a_popped_topic_is_one_assignment_of_any_queue(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """For every member and at every broker; an ordered group pulls all the same."""
    for group_id, name, fifo in ((20, GROUP, False), (21, ORDERED, True)):
        row = meta_pb2.ConsumerGroup(
            consumer_group_id=group_id, name=name, fifo=fifo, pop_topics=["orders"]
        )
        cluster.stub.write(meta_pb2.Change(consumer_group=row))
    for broker in brokers:
        assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
        async with client_of(broker) as client:
            assert await assigned(client, "a") == {"POP": [-1]}
            every = await assigned(client, "a", messageModel="BROADCASTING")
            assert every == {"PULL": [0, 1, 2, 3]}
            await client.heartbeat("a", ORDERED, {"orders": "*"})
            assert await assigned(client, "a", group=ORDERED) == {"PULL": [0, 1, 2, 3]}
            await client.heartbeat("a", GROUP, {"fifo": "*"})
            assert await assigned(client, "a", "fifo") == {"PULL": [0, 1, 2, 3]}


async def test_a_pop_of_nothing_that_exists_is_refused(brokers: Sequence[ClusterBroker]) -> None:
    """With RocketMQ's codes: the topic, the filter, or a field that is missing."""
    async with clients(brokers) as [client]:
        answer, _ = await client.pop("absent", GROUP)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer, _ = await client.pop("orders", GROUP, expType="SQL92", exp="a >")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        await client.send("orders", b"x", 0)
        [one] = await popped(client, 1)
        fields = popped_fields(GROUP, one)
        del fields["extraInfo"]
        missing = await client.ask(RequestCode.ACK_MESSAGE, fields)
        assert (missing.code, missing.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the field extraInfo is missing",
        )


async def test_a_pop_too_many_is_told_that_there_is_no_room(cluster: ClusterUnderTest) -> None:
    """By the code at which clients pause, with all fields that they read; RocketMQ's own."""
    receive = {"min_polling_ms": 0, "max_parked_per_client": 1, "surplus_pause_ms": 0}
    config = BrokerConfig.model_validate({"receive": receive, "remoting": {"port": 0}})
    async with brokers_over(cluster, config) as brokers, clients(brokers, 3) as [one, _, other]:
        await one.heartbeat("me", GROUP, {})
        waiting = asyncio.ensure_future(one.pop("orders", GROUP, wait_ms=20_000))
        apps = [broker.app for broker in brokers]
        await until(lambda: sum(map(waiting_receives, apps)) == 1)
        answer, nothing = await one.pop("orders", GROUP, wait_ms=20_000)
        assert (answer.code, answer.remark) == (ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")
        assert nothing == []
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(answer.fields)
        await other.send("orders", b"x", 0)
        _, [message] = await waiting
        assert message.body == b"x"
