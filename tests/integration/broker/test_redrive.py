"""Dead letters over two brokers and three storage nodes: counted, shown, sent back, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.operators import redrive
from strata_broker.storage_client.append_lanes import Appender
from strata_edge.ports import CallError
from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.names import REDRIVE_GROUP
from strata_testing import until
from strata_testing.broker.client import resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate({"receive": {"min_polling_ms": 0}})
GROUP = "g"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in furnished_cluster(tmp_path):
        group = meta_pb2.ConsumerGroup(consumer_group_id=30, name=REDRIVE_GROUP)
        made.stub.write(meta_pb2.Change(consumer_group=group))
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    async with brokers_over(cluster, CONFIG) as started:
        yield started


async def receive_some(broker: ClusterBroker, group: str) -> list[definition_pb2.Message]:
    """Receive whatever is there, from both broker names."""
    return await broker.client.receive_all("orders", group, polling_s=0)


async def give_up(broker: ClusterBroker, count: int) -> list[str]:
    """Send messages and let the consumer group give them up; return their ids in order sent."""
    await send_numbers(broker.client, "orders", range(1, count + 1))
    ids: dict[int, str] = {}
    async with asyncio.timeout(30):
        while len(ids) < count:
            for one in await receive_some(broker, GROUP):
                properties = one.system_properties
                request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                    group=resource(GROUP),
                    topic=resource("orders"),
                    receipt_handle=properties.receipt_handle,
                    message_id=properties.message_id,
                )
                response = await broker.edge.call(
                    MESSAGING + "ForwardMessageToDeadLetterQueue",
                    request,
                    service_pb2.ForwardMessageToDeadLetterQueueResponse,
                )
                assert response.status.code == definition_pb2.OK, response.status
                ids[int(one.body)] = properties.message_id
    return [ids[number] for number in sorted(ids)]


async def run(broker: ClusterBroker, **fields: Any) -> admin_pb2.RedriveDeadLettersResponse:
    """Redrive."""
    request = admin_pb2.RedriveDeadLettersRequest(consumer_group=GROUP, **fields)
    return await broker.edge.call(
        ADMIN + "RedriveDeadLetters", request, admin_pb2.RedriveDeadLettersResponse
    )


async def counts(broker: ClusterBroker) -> tuple[int, int]:
    """Return (letters retained, letters that wait)."""
    response = await broker.edge.call(
        ADMIN + "ListDeadLetterTopics",
        admin_pb2.ListDeadLetterTopicsRequest(),
        admin_pb2.ListDeadLetterTopicsResponse,
    )
    found = [topic for topic in response.topics if topic.consumer_group == GROUP]
    return (found[0].messages, found[0].waiting) if found else (0, 0)


async def received_again(broker: ClusterBroker, count: int) -> list[definition_pb2.Message]:
    """Receive and ack what was redriven, until there are as many."""
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            got += await receive_some(broker, GROUP)
    return got


async def test_a_dry_run_changes_nothing(brokers: Sequence[ClusterBroker]) -> None:
    """It tells what would be sent, page by page; a redrive afterwards sends all of it."""
    ids = await give_up(brokers[0], 5)
    assert await counts(brokers[1]) == (5, 5)
    first = await run(brokers[1], dry_run=True, max_messages=3)
    rest = await run(brokers[1], dry_run=True, page_token=first.next_page_token)
    shown = [one.message_id for one in (*first.messages, *rest.messages)]
    assert sorted(shown) == sorted(ids)
    assert {one.topic for one in first.messages} == {"orders"}
    assert (first.waiting, rest.waiting, rest.next_page_token) == (5, 5, "")
    assert await counts(brokers[0]) == (5, 5)
    assert await receive_some(brokers[0], GROUP) == []


async def test_redriven_messages_say_where_they_come_from(
    brokers: Sequence[ClusterBroker],
) -> None:
    """New ids, same bodies, properties that name the letter; a second redrive sends nothing."""
    ids = await give_up(brokers[0], 3)
    done = await run(brokers[1])
    assert sorted(one.message_id for one in done.messages) == sorted(ids)
    assert all(one.new_message_id and not one.error for one in done.messages)
    assert done.waiting == 0
    again = await received_again(brokers[0], 3)
    by_old_id = {one.user_properties[redrive.ID_PROPERTY]: one for one in again}
    assert sorted(by_old_id) == sorted(ids)
    for number, old_id in enumerate(ids, 1):
        one = by_old_id[old_id]
        assert int(one.body) == number
        assert one.system_properties.message_id != old_id
        assert one.user_properties[redrive.FROM_PROPERTY] == "%DLQ%g"
        assert one.user_properties[redrive.COUNT_PROPERTY] == "1"
    assert list((await run(brokers[0])).messages) == []
    assert await counts(brokers[0]) == (3, 0)


async def test_one_letter_is_redriven_by_its_message_id(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The others wait as before, and are released at once; unknown ids are refused."""
    ids = await give_up(brokers[0], 6)
    done = await run(brokers[0], message_id=ids[4])
    assert [one.message_id for one in done.messages] == [ids[4]]
    assert done.waiting == 5
    for unknown in (ids[4], "01" + "F" * 32):
        with pytest.raises(CallError, match=r"redriven|no dead letter"):
            await run(brokers[0], message_id=unknown)
    listed = await brokers[1].edge.call(
        ADMIN + "ListDeadLetters",
        admin_pb2.ListDeadLettersRequest(consumer_group=GROUP),
        admin_pb2.ListDeadLettersResponse,
    )
    redriven = [
        definition_pb2.Message.FromString(letter.stored.message).system_properties.message_id
        for letter in listed.dead_letters
        if letter.redriven
    ]
    assert (len(listed.dead_letters), redriven) == (6, [ids[4]])
    sent: set[str] = set()
    async with asyncio.timeout(30):
        # The leases of the call before are released within a moment.
        while len(sent) < 5:
            sent |= {one.message_id for one in (await run(brokers[1])).messages}
    assert sent == set(ids) - {ids[4]}


async def test_a_limit_is_kept(brokers: Sequence[ClusterBroker]) -> None:
    """A call sends at most so many; calls after it go on."""
    await give_up(brokers[0], 5)
    first = await run(brokers[0], max_messages=2)
    assert (len(first.messages), first.waiting) == (2, 3)
    assert await counts(brokers[1]) == (5, 3)


async def test_a_broker_that_dies_between_send_and_ack_sends_nothing_twice(
    brokers: Sequence[ClusterBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letters stay, are redriven again, and storage recognises the new message ids."""
    await give_up(brokers[0], 4)

    async def forget_the_ack(*_: object) -> None:
        """The broker dies before it acks."""

    with monkeypatch.context() as patch:
        patch.setattr(redrive.Redriver, "_ack", forget_the_ack)
        lost = await run(brokers[0])
        assert (len(lost.messages), lost.waiting) == (4, 4)
    new_ids: dict[str, str] = {one.message_id: one.new_message_id for one in lost.messages}
    async with asyncio.timeout(30):
        while (await counts(brokers[1]))[1]:
            for one in (await run(brokers[1])).messages:
                assert one.new_message_id == new_ids[one.message_id]
    got = await received_again(brokers[0], 4)
    await asyncio.sleep(0.1)
    got += await receive_some(brokers[0], GROUP)
    assert len(got) == 4


async def test_a_letter_whose_topic_is_gone_stays(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """It is told with the reason; the others of the call are sent."""
    await give_up(brokers[0], 2)
    topic = brokers[0].app.view.topic("", "orders")
    assert topic is not None
    cluster.stub.write(meta_pb2.Change(topic=topic.parsed(), deleted=True))
    assert await brokers[0].app.view.wait_for_revision(cluster.stub.cache.revision, 60)
    done = await run(brokers[0])
    assert [bool(one.error) for one in done.messages] == [True, True]
    assert "No topic route info" in done.messages[0].error
    assert done.waiting == 2


async def test_a_redrive_that_is_given_up_keeps_no_budget(
    brokers: Sequence[ClusterBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its staged messages are charged until they are settled, whether somebody waits or not."""
    await give_up(brokers[0], 3)
    staged: list[tuple[Any, Any]] = []

    def hold(_: Any, __: int, ___: Any, ____: Any, indexes: Any, waiter: Any, *_____: Any) -> None:
        staged.append((waiter, indexes))

    monkeypatch.setattr(Appender, "stage", hold)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run(brokers[0]))
        await until(lambda: staged)
        assert brokers[0].app.send_budget.used_bytes > 0
        running.cancel()
    assert running.cancelled()
    for waiter, indexes in staged:
        waiter.refused(indexes, RequestError(Code.PROXY_TIMEOUT, "late"))
    assert brokers[0].app.send_budget.used_bytes == 0
