"""Batch acks, notifications and peeks of remoting consumers, over two brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strata_broker.base.config import BrokerConfig
from strata_broker.receives.deliverable import DeliverableLooks
from strata_broker.storage_client.quiet_places import QuietPlaces
from strata_remoting import PulledMessage, RemotingCommand, RequestCode, ResponseCode
from strata_testing import until
from strata_testing.remoting_client import RemotingClient, batch_acks
from tests.integration.broker.cluster_brokers import ClusterBroker, brokers_over
from tests.integration.broker.remoting_brokers import (
    GROUP,
    clients,
    remoting_cluster,
    remoting_config,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

QUEUES = 4
LONG_MS = 60_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in remoting_cluster(tmp_path):
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    config = remoting_config(max_notifications=1, notification_check_ms=50)
    async with brokers_over(cluster, config) as started:
        yield started


def waiting_config(**remoting: Any) -> BrokerConfig:
    """A configuration in which a client may wait for two minutes."""
    receive = {"min_polling_ms": 0, "max_polling_ms": 120_000}
    return BrokerConfig.model_validate({"receive": receive, "remoting": {"port": 0, **remoting}})


async def sent(client: RemotingClient, count: int) -> None:
    """Send numbered messages to all queues in turn."""
    for number in range(count):
        await client.send("orders", b"%d" % number, number % QUEUES)


async def popped(client: RemotingClient, count: int, **fields: Any) -> list[PulledMessage]:
    """Pop until there are so many messages."""
    found: list[PulledMessage] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            _, messages = await client.pop("orders", GROUP, wait_ms=5_000, **fields)
            found += messages
    return found


def told(answer: RemotingCommand) -> tuple[str, str]:
    """Return what a notification tells."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.fields["hasMsg"], answer.fields["pollingFull"]


def waiting_at(brokers: Sequence[ClusterBroker]) -> int:
    """How many notifications wait at all brokers."""
    remoting = [broker.app._remoting for broker in brokers]
    return sum(one._looks.waiting for one in remoting if one is not None)


async def test_a_batch_ack_ends_all_its_leases(brokers: Sequence[ClusterBroker]) -> None:
    """Also at a broker that gave none of the messages; a repeat is answered as the first one."""
    async with clients(brokers) as [client]:
        await sent(client, 12)
        messages = await popped(client, 12, invisible_ms=LONG_MS)
        other = RemotingClient(brokers[1].app.shown()["nameserver"])
        async with other:
            for _ in range(2):
                answer = await other.batch_ack(GROUP, messages)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
        # All leases are gone: a lease that was left would still be held.
        for one in messages:
            assert (await client.ack_pop(GROUP, one)).code == ResponseCode.SUCCESS
        assert told(await client.notification("orders", GROUP)) == ("false", "false")


async def test_a_batch_ack_after_a_change_has_the_numbers_of_the_change(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Java's client makes the next extra info of the fields of the answer."""
    async with clients(brokers) as [client]:
        await sent(client, 1)
        [one] = await popped(client, 1)
        changed = await client.change_pop(GROUP, one, 50_000)
        now = {
            "pt": int(changed.fields["popTime"]),
            "it": int(changed.fields["invisibleTime"]),
            "rq": int(changed.fields["reviveQid"]),
        }
        before = await client.batch_ack(GROUP, [one])
        assert before.code == ResponseCode.ILLEGAL_OPERATION
        after = await client.batch_ack(GROUP, [one], **now)
        assert after.code == ResponseCode.SUCCESS, after.remark


@pytest.mark.parametrize(
    "change",
    [{"rq": 0}, {"rq": 999}, {"pt": 1}, {"it": 1}, {"so": 5}, {"q": 1}, {"q": 99}, {"r": "1"}],
    ids=str,
)
async def test_other_numbers_ack_nothing(
    brokers: Sequence[ClusterBroker], change: dict[str, object]
) -> None:
    """A mark holds for one group, place and end of a lease; the good part is acked all the same."""
    async with clients(brokers) as [client]:
        await client.send("orders", b"x", 0)
        await client.send("orders", b"y", 0)
        bad, good = await popped(client, 2)
        body = {"acks": [*batch_acks(GROUP, [bad], **change), *batch_acks(GROUP, [good])]}
        answer = await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(body).encode())
        assert (answer.code, answer.remark) == (
            ResponseCode.ILLEGAL_OPERATION,
            "1 of 2 messages are not acked",
        )
        # Only the bad one still has a lease that can be changed.
        codes = [(await client.change_pop(GROUP, one, LONG_MS)).code for one in (bad, good)]
        assert codes == [ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION]


async def test_another_groups_name_acks_nothing(brokers: Sequence[ClusterBroker]) -> None:
    """Nor does a topic that is not there; a batch of nothing is told so."""
    async with clients(brokers) as [client]:
        await sent(client, 1)
        [one] = await popped(client, 1)
        _, _ = await client.pop("orders", "other")
        answer = await client.batch_ack("other", [one])
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        absent = await client.batch_ack(GROUP, [one], t="absent")
        assert absent.code == ResponseCode.TOPIC_NOT_EXIST
        for body in (b"", b'{"acks":[]}', b"{}"):
            empty = await client.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
            assert empty.code == ResponseCode.NO_MESSAGE
        assert (await client.batch_ack(GROUP, [one])).code == ResponseCode.SUCCESS


async def test_a_batch_ack_has_a_limit(brokers: Sequence[ClusterBroker]) -> None:
    """Bits of messages that nobody was given cost nothing but an answer."""
    async with clients(brokers) as [client]:
        await sent(client, 1)
        [one] = await popped(client, 1)
        answer = await client.batch_ack(GROUP, [one], b=[255] * 60_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "480000 messages in 1 parts" in answer.remark


async def test_a_notification_says_whether_something_can_be_popped(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Messages that others have count as nothing; a message that comes back counts again."""
    async with clients(brokers) as [client]:
        missing = await client.notification("orders", "unheard")
        assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await client.pop("orders", GROUP)
        assert told(await client.notification("orders", GROUP)) == ("false", "false")
        await client.send("orders", b"x", 2)
        assert told(await client.notification("orders", GROUP)) == ("true", "false")
        assert told(await client.notification("orders", GROUP, queue=2)) == ("true", "false")
        assert told(await client.notification("orders", GROUP, queue=1)) == ("false", "false")
        [one] = await popped(client, 1)
        assert told(await client.notification("orders", GROUP)) == ("false", "false")
        await client.change_pop(GROUP, one, 0)
        assert told(await client.notification("orders", GROUP)) == ("true", "false")
        [again] = await popped(client, 1)
        assert again.reconsume_times == 1


async def test_a_notification_waits_and_another_is_too_many(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The one that waits hears of the message; the room is free again afterwards."""
    async with clients(brokers, 3) as [first, _, second]:
        await first.pop("orders", GROUP)
        waiting = asyncio.ensure_future(first.notification("orders", GROUP, wait_ms=15_000))
        await until(lambda: waiting_at(brokers) == 1)
        assert told(await second.notification("orders", GROUP, wait_ms=1)) == ("false", "true")
        await second.send("orders", b"x", 0)
        assert told(await waiting) == ("true", "false")
        [one] = await popped(second, 1)
        await second.ack_pop(GROUP, one)
        assert told(await second.notification("orders", GROUP, wait_ms=1)) == ("false", "false")


WAKES = ("a send", "a lease that is given back", "the end of a lease")


@pytest.mark.parametrize("by", WAKES)
async def test_a_notification_is_woken_as_a_pop_is(cluster: ClusterUnderTest, by: str) -> None:
    """By the news that wakes parked receives: it would not look by itself for ten minutes."""
    config = waiting_config(notification_check_ms=600_000)
    async with brokers_over(cluster, config) as brokers, clients(brokers, 3) as [one, _, other]:
        await one.send("orders", b"x", 1)
        [message] = await popped(one, 1, invisible_ms=2_000)
        if by == "a send":
            await one.ack_pop(GROUP, message)
        waiting = asyncio.ensure_future(other.notification("orders", GROUP, wait_ms=120_000))
        await until(lambda: waiting_at(brokers) == 1)
        if by == "a send":
            await one.send("orders", b"y", 2)
        elif by == "a lease that is given back":
            await one.change_pop(GROUP, message, 0)
        async with asyncio.timeout(30):
            assert told(await waiting) == ("true", "false")


async def test_notifications_of_one_group_share_a_look(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks and the others wait; when there is something, all of them are told."""
    looked: list[bool] = []
    look = DeliverableLooks._look

    async def counted(self: DeliverableLooks, *arguments: Any) -> bool:
        found = await look(self, *arguments)
        looked.append(found)
        return found

    monkeypatch.setattr(DeliverableLooks, "_look", counted)
    config = waiting_config(notification_check_ms=600_000)
    async with brokers_over(cluster, config) as brokers, clients(brokers, 13) as each:
        # Clients with headers in JSON.
        one, *others = each[::2]
        await one.pop("orders", GROUP)
        waiting = [
            asyncio.ensure_future(other.notification("orders", GROUP, wait_ms=120_000))
            for other in others
        ]
        await until(lambda: waiting_at(brokers) == 6)
        await until(lambda: bool(looked))
        await one.send("orders", b"x", 0)
        async with asyncio.timeout(30):
            answers = [told(await answer) for answer in waiting]
        assert answers == [("true", "false")] * 6
        # Before the message there was one look, or a second one if the first one was overtaken.
        assert looked.count(False) <= 2


async def test_a_node_that_does_not_tell_is_looked_at_again(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier version: at the pace of the configuration."""
    monkeypatch.setattr(QuietPlaces, "stream_of", lambda *_: 0)
    config = waiting_config(notification_check_ms=50)
    async with brokers_over(cluster, config) as brokers, clients(brokers, 3) as [one, _, other]:
        await one.pop("orders", GROUP)
        waiting = asyncio.ensure_future(other.notification("orders", GROUP, wait_ms=120_000))
        await until(lambda: waiting_at(brokers) == 1)
        await one.send("orders", b"x", 0)
        async with asyncio.timeout(30):
            assert told(await waiting) == ("true", "false")


@pytest.mark.parametrize("by", ["client", "connection", "address"])
async def test_nobody_takes_all_places_of_notifications(cluster: ClusterUnderTest, by: str) -> None:
    """A client by any name has its connections, and these an address; others have room."""
    share = {"max_notifications_per_client": 1}
    if by == "address":
        share = {"max_notifications_per_address": 1}
    config = waiting_config(**share)
    async with brokers_over(cluster, config) as brokers, clients(brokers, 7) as each:
        first, second, third, last = each[::2]
        await last.pop("orders", GROUP)
        names = {"client": ("me", "me"), "connection": ("me", "I"), "address": ("me", "I")}[by]
        again = first if by == "connection" else second
        await first.heartbeat(names[0], GROUP, {})
        waiting = asyncio.ensure_future(first.notification("orders", GROUP, wait_ms=120_000))
        await until(lambda: waiting_at(brokers) == 1)
        await again.heartbeat(names[1], GROUP, {})
        answer = await again.notification("orders", GROUP, wait_ms=120_000)
        assert told(answer) == ("false", "true")
        if by != "address":
            await third.heartbeat("another", GROUP, {})
            more = asyncio.ensure_future(third.notification("orders", GROUP, wait_ms=120_000))
            await until(lambda: waiting_at(brokers) == 2)
        await last.send("orders", b"x", 0)
        assert told(await waiting) == ("true", "false")
        if by != "address":
            assert told(await more) == ("true", "false")


async def test_a_client_that_goes_leaves_the_room_of_its_notification(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The next one may wait."""
    async with clients(brokers, 3) as [gone, _, other]:
        await other.pop("orders", GROUP)
        waiting = asyncio.ensure_future(gone.notification("orders", GROUP, wait_ms=60_000))
        await until(lambda: waiting_at(brokers) == 1)
        await gone.__aexit__()
        with pytest.raises(ConnectionResetError):
            await waiting
        await until(lambda: waiting_at(brokers) == 0)
        assert told(await other.notification("orders", GROUP, wait_ms=1)) == ("false", "false")


async def test_a_peek_leases_nothing(brokers: Sequence[ClusterBroker]) -> None:
    """It shows new messages of one queue or of all, as many as were asked for, and the rest."""
    async with clients(brokers) as [client]:
        await client.pop("orders", GROUP)
        answer, nothing = await client.peek("orders", GROUP)
        assert (answer.code, nothing) == (ResponseCode.PULL_NOT_FOUND, [])
        assert answer.fields["restNum"] == "0"
        await sent(client, 8)
        for _ in range(2):
            answer, messages = await client.peek("orders", GROUP)
            assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
            assert sorted(one.body for one in messages) == [b"%d" % each for each in range(8)]
            assert "POP_CK" not in messages[0].properties
            assert answer.fields["restNum"] == "8"
        _, [first, second] = await client.peek("orders", GROUP, queue=3)
        assert (first.body, second.body, first.queue_id) == (b"3", b"7", 3)
        answer, some = await client.peek("orders", GROUP, most=3)
        assert (len(some), answer.fields["restNum"]) == (3, "8")
        messages = await popped(client, 8)
        assert {one.reconsume_times for one in messages} == {0}
        answer, nothing = await client.peek("orders", GROUP)
        assert (answer.code, nothing) == (ResponseCode.PULL_NOT_FOUND, [])
