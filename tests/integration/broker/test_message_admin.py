"""Messages as operators see them, over two brokers and three storage nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_testing.broker.client import message
from strata_testing.broker.fake_edge import ADMIN, METADATA
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    handles_of,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate({"receive": {"min_polling_ms": 0}})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    async with brokers_over(cluster, CONFIG) as started:
        yield started


async def find(broker: ClusterBroker, **fields: Any) -> admin_pb2.FindMessagesResponse:
    """Find messages of topic `orders`."""
    request = admin_pb2.FindMessagesRequest(topic="orders", **fields)
    return await broker.edge.call(ADMIN + "FindMessages", request, admin_pb2.FindMessagesResponse)


def numbers_of(found: admin_pb2.FindMessagesResponse) -> list[int]:
    return [int(definition_pb2.Message.FromString(one.message).body) for one in found.messages]


async def send(broker: ClusterBroker, number: int, **properties: Any) -> None:
    sent = await broker.client.send(message("orders", number, body=b"%d" % number, **properties))
    assert sent.status.code == definition_pb2.OK


async def test_messages_are_found_by_time_page_by_page(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Exactly those stored between two times, each once, in pages of any size."""
    for number in range(1, 11):
        await send(brokers[0], number)
    await asyncio.sleep(0.01)
    everything = await find(brokers[1], begin_ms=0)
    between_ms = max(one.store_time_ms for one in everything.messages) + 1
    await asyncio.sleep(0.01)
    for number in range(11, 21):
        await send(brokers[0], number)
    assert sorted(numbers_of(await find(brokers[1], end_ms=between_ms))) == list(range(1, 11))
    late: list[int] = []
    token = ""
    for _ in range(20):
        page = await find(brokers[1], begin_ms=between_ms, max_messages=3, page_token=token)
        assert len(page.messages) <= 3
        late += numbers_of(page)
        token = page.next_page_token
        if not token:
            break
    assert sorted(late) == list(range(11, 21))
    one_queue = await find(brokers[0], begin_ms=0, queue=2)
    assert {one.queue for one in one_queue.messages} == {2}


async def test_a_search_by_tag_reads_only_what_matches(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Beside a time, and beside a key."""
    for number in range(1, 9):
        await send(brokers[0], number, tag="odd" if number % 2 else "even", keys=["k"])
    assert sorted(numbers_of(await find(brokers[1], begin_ms=0, tag="odd"))) == [1, 3, 5, 7]
    assert sorted(numbers_of(await find(brokers[1], key="k", tag="even"))) == [2, 4, 6, 8]
    paged = await find(brokers[1], key="k", max_messages=5)
    rest = await find(brokers[1], key="k", page_token=paged.next_page_token)
    assert sorted(numbers_of(paged) + numbers_of(rest)) == list(range(1, 9))


async def test_a_bad_page_token_is_refused(brokers: Sequence[ClusterBroker]) -> None:
    """INVALID_ARGUMENT with the token in the text."""
    with pytest.raises(CallError, match="is not a page token") as failure:
        await find(brokers[0], begin_ms=0, page_token="a:b")
    assert failure.value.status == "INVALID_ARGUMENT"


async def test_a_trace_tells_the_whole_way_of_a_message(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Sender, place, who was given it through which client, and who acked."""
    await send(brokers[0], 1, born_host="till-7")
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(60):
        while not got:
            got = await brokers[1].client.receive_all("orders", "g", polling_s=0)
        await brokers[1].client.ack("orders", "g", *handles_of(got))
    message_id = got[0].system_properties.message_id
    # The client's name is written a moment after its first pop.
    steps: Sequence[admin_pb2.TraceStep] = ()
    async with asyncio.timeout(60):
        while not steps or not steps[0].client_id:
            response = await brokers[0].edge.call(
                ADMIN + "TraceMessage",
                admin_pb2.TraceMessageRequest(topic="orders", message_id=message_id),
                admin_pb2.TraceMessageResponse,
            )
            (traced,) = response.messages
            steps = traced.steps
            await asyncio.sleep(0.02)
    client_id = METADATA["x-mq-client-id"]
    assert (traced.sender_client_id, traced.born_host) == (client_id, "till-7")
    assert traced.raft_group in (1, 2)
    assert (traced.stored.queue, traced.stored.offset) == (
        got[0].system_properties.queue_id,
        got[0].system_properties.queue_offset,
    )
    assert [(step.consumer_group, step.what) for step in steps] == [
        ("g", "delivered"),
        ("g", "acked"),
    ]
    assert (steps[0].client_id, steps[0].attempt) == (client_id, 1)
    assert traced.stored.store_time_ms <= steps[0].time_ms <= steps[1].time_ms


async def test_a_trace_of_nothing_is_not_found(brokers: Sequence[ClusterBroker]) -> None:
    """NOT_FOUND for an id that no message has."""
    with pytest.raises(CallError) as failure:
        await brokers[0].edge.call(
            ADMIN + "TraceMessage",
            admin_pb2.TraceMessageRequest(topic="orders", message_id="01" + "A" * 32),
            admin_pb2.TraceMessageResponse,
        )
    assert failure.value.status == "NOT_FOUND"
