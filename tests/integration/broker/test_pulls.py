"""Pull consumers over two brokers and three storage nodes: offsets, long polls, moved queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.storage.v1.storage_pb2 import FetchRequest, FetchResponse
from strata_broker.base.config import BrokerConfig
from strata_broker.receives.pulls import Puller
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.slots import fifo_queue
from strata_storage.reads.reader import Location, MessageReader
from strata_testing import until
from strata_testing.broker.client import message, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, FakeCall
from tests.integration.broker.cluster_brokers import (
    FIFO,
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    reading_from,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate(
    # A pull keeps its turn, however slow the machine is.
    {"receive": {"min_polling_ms": 0}, "pull": {"turn_ms": 60_000}}
)
GROUP = "g"
SOURCE, DESTINATION = 1, 2
# Messages of this message group go to queue 0 of a topic of 4.
QUEUE_0_GROUP = next(name for name in map(str, range(100)) if fifo_queue(name, 4) == 0)


class Pulled(NamedTuple):
    """Answer of a pull."""

    status: definition_pb2.Status
    messages: Sequence[definition_pb2.Message]
    next_offset: int | None


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture(params=["leader", "replicas", "places"])
async def brokers(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> AsyncIterator[Sequence[ClusterBroker]]:
    async with brokers_over(cluster, reading_from(request.param, CONFIG)) as started:
        yield started


def queue_of(topic: str, queue_id: int, broker_name: str = "strata-1") -> Any:
    """A queue by its public name."""
    return definition_pb2.MessageQueue(
        topic=resource(topic), id=queue_id, broker=definition_pb2.Broker(name=broker_name)
    )


async def pull(
    broker: ClusterBroker,
    queue: definition_pb2.MessageQueue,
    offset: int,
    *,
    wait_s: int = 0,
    client_id: str = "puller",
    **fields: Any,
) -> Pulled:
    """Pull as a client does; check the form of the answer."""
    request = service_pb2.PullMessageRequest(
        group=resource(GROUP), message_queue=queue, offset=offset, **{"batch_size": 32} | fields
    )
    request.long_polling_timeout.seconds = wait_s
    call = FakeCall("PullMessage", b"", {"x-mq-client-id": client_id})
    stream = broker.edge.server_streams[MESSAGING + "PullMessage"](
        request.SerializeToString(), call
    )
    responses = [service_pb2.PullMessageResponse.FromString(data) async for data in stream]
    kinds = [response.WhichOneof("content") for response in responses]
    assert kinds[0] == "status", "the status comes first"
    messages = [response.message for response in responses if response.HasField("message")]
    next_offset = responses[-1].next_offset if kinds[-1] == "next_offset" else None
    return Pulled(responses[0].status, messages, next_offset)


async def unary(broker: ClusterBroker, rpc: str, **fields: Any) -> Any:
    """Make one of the three calls about offsets."""
    request = getattr(service_pb2, f"{rpc}Request")(**fields)
    return await broker.edge.call(MESSAGING + rpc, request, getattr(service_pb2, f"{rpc}Response"))


async def send_to_queue_0(broker: ClusterBroker, numbers: range) -> list[int]:
    """Send FIFO messages that all go to queue 0 of topic `fifo`."""
    return await send_numbers(broker.client, "fifo", numbers, QUEUE_0_GROUP)


def numbers_of(pulled: Pulled) -> list[int]:
    assert pulled.status.code == definition_pb2.OK, pulled.status
    return [int(one.body) for one in pulled.messages]


async def test_every_queue_is_pulled_by_its_own_id(brokers: Sequence[ClusterBroker]) -> None:
    """Ids 0 and 1 under both broker names are the topic's four queues: all messages, each once."""
    await send_numbers(brokers[0].client, "orders", range(1, 41))
    seen: list[int] = []
    for name in ("strata-1", "strata-2"):
        for queue_id in (0, 1):
            pulled = await pull(brokers[1], queue_of("orders", queue_id, name), 0)
            assert pulled.next_offset == len(pulled.messages)
            offsets = [one.system_properties.queue_offset for one in pulled.messages]
            assert offsets == list(range(len(offsets)))
            seen += numbers_of(pulled)
    assert sorted(seen) == list(range(1, 41))


async def test_a_pull_waits_for_a_message_sent_through_another_broker(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The long poll ends with the message, not with the wait."""
    waiting = asyncio.ensure_future(pull(brokers[0], queue_of("fifo", 0), 0, wait_s=20))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        await send_to_queue_0(brokers[1], range(1, 2))
        pulled = await waiting
    assert (numbers_of(pulled), pulled.next_offset) == ([1], 1)


async def test_few_pulls_are_read_at_once_and_those_that_wait_are_not_among_them(
    brokers: Sequence[ClusterBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty wait at the end of a queue; of twenty that find messages two are read at a time."""
    await send_to_queue_0(brokers[0], range(1, 6))
    reading, most_at_once = 0, 0
    read = Puller._read

    async def counted(puller: Puller, request: FetchRequest, *others: Any) -> FetchResponse:
        nonlocal reading, most_at_once
        if request.wait_ms:
            return await read(puller, request, *others)
        reading += 1
        most_at_once = max(most_at_once, reading)
        try:
            return await read(puller, request, *others)
        finally:
            reading -= 1

    monkeypatch.setattr(Puller, "_read", counted)
    # It is told so by a report that may come later than this test begins.
    monkeypatch.setattr(StorageClient, "has_leader", lambda client, raft_group: True)
    queue, broker = queue_of("fifo", 0), brokers[0]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(pull(broker, queue, 5, wait_s=20, client_id=f"waits-{number}"))
            for number in range(20)
        ]
        for round_number in range(2):
            found = [
                tasks.create_task(pull(broker, queue, 0, client_id=f"{round_number}-{number}"))
                for number in range(20)
            ]
            for one in found:
                assert numbers_of(await one) == [1, 2, 3, 4, 5]
        assert not any(one.done() for one in waiting)
        await send_to_queue_0(brokers[1], range(6, 7))
    assert [numbers_of(one.result()) for one in waiting] == [[6]] * 20
    assert most_at_once == 2


async def test_every_member_of_a_broadcast_group_gets_everything(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Two clients of one consumer group pull the same messages, each at its own pace."""
    await send_to_queue_0(brokers[0], range(1, 6))
    slow = await pull(brokers[0], queue_of("fifo", 0), 0, client_id="slow", batch_size=2)
    fast = await pull(brokers[1], queue_of("fifo", 0), 0, client_id="fast")
    assert (numbers_of(slow), numbers_of(fast)) == ([1, 2], [1, 2, 3, 4, 5])
    assert slow.next_offset is not None
    rest = await pull(brokers[1], queue_of("fifo", 0), slow.next_offset, client_id="slow")
    assert numbers_of(rest) == [3, 4, 5]


async def test_filters_pass_over_messages(brokers: Sequence[ClusterBroker]) -> None:
    """By tag and by SQL92; the next pull goes on behind what was passed over."""
    for number in range(1, 7):
        one = message(
            "fifo",
            number,
            body=b"%d" % number,
            message_type=definition_pb2.FIFO,
            message_group=QUEUE_0_GROUP,
            tag="even" if number % 2 == 0 else "odd",
        )
        one.user_properties["number"] = str(number)
        await brokers[0].client.send(one)
    for kind, expression, expected in (
        (definition_pb2.TAG, "even", [2, 4, 6]),
        (definition_pb2.SQL, "number > 4", [5, 6]),
        (definition_pb2.TAG, "neither", []),
    ):
        wanted = definition_pb2.FilterExpression(type=kind, expression=expression)
        pulled = await pull(brokers[0], queue_of("fifo", 0), 0, filter_expression=wanted)
        assert (numbers_of(pulled), pulled.next_offset) == (expected, 6), expression
    wanted = definition_pb2.FilterExpression(type=definition_pb2.SQL, expression="number >")
    refused = await pull(brokers[0], queue_of("fifo", 0), 0, filter_expression=wanted)
    assert refused.status.code == definition_pb2.ILLEGAL_FILTER_EXPRESSION


async def test_an_offset_that_the_queue_has_not(brokers: Sequence[ClusterBroker]) -> None:
    """ILLEGAL_OFFSET, with the nearest one that it has."""
    await send_to_queue_0(brokers[0], range(1, 4))
    for offset, nearest in ((-1, 0), (4, 3), (1 << 62, 3)):
        pulled = await pull(brokers[0], queue_of("fifo", 0), offset)
        assert (pulled.status.code, pulled.next_offset) == (definition_pb2.ILLEGAL_OFFSET, nearest)


async def test_stored_offsets_are_the_consumer_groups_position(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Stored through one broker, found through the other; lag and reset know it too."""
    await send_to_queue_0(brokers[0], range(1, 6))
    queue = queue_of("fifo", 0)
    named = {"group": resource(GROUP), "message_queue": queue}
    before = await unary(brokers[0], "GetOffset", **named)
    assert before.status.code == definition_pb2.OFFSET_NOT_FOUND
    stored = await unary(brokers[0], "UpdateOffset", **named, offset=3)
    assert stored.status.code == definition_pb2.OK
    found = await unary(brokers[1], "GetOffset", **named)
    assert (found.status.code, found.offset) == (definition_pb2.OK, 3)
    shown = await brokers[1].edge.call(
        ADMIN + "GetConsumerGroup",
        admin_pb2.GetConsumerGroupRequest(name=GROUP),
        admin_pb2.GetConsumerGroupResponse,
    )
    (lag,) = [one for one in shown.queues if (one.topic, one.queue) == ("fifo", 0)]
    assert (lag.cursor, lag.lag, lag.in_flight) == (3, 2, 0)
    reset = admin_pb2.ResetConsumerGroupRequest(name=GROUP, topic="fifo", earliest=True)
    await brokers[0].edge.call(
        ADMIN + "ResetConsumerGroup", reset, admin_pb2.ResetConsumerGroupResponse
    )
    assert (await unary(brokers[0], "GetOffset", **named)).offset == 0
    beyond = await unary(brokers[0], "UpdateOffset", **named, offset=99)
    assert beyond.status.code == definition_pb2.OK
    assert (await unary(brokers[0], "GetOffset", **named)).offset == 5


async def test_offsets_by_policy(brokers: Sequence[ClusterBroker]) -> None:
    """The first, the one behind the last, and the first stored since a time."""
    await send_to_queue_0(brokers[0], range(1, 4))
    await asyncio.sleep(0.02)
    pulled = await pull(brokers[0], queue_of("fifo", 0), 0)
    last = pulled.messages[-1].system_properties.store_timestamp
    queue = queue_of("fifo", 0)

    async def offset(policy: definition_pb2.QueryOffsetPolicy.ValueType, **time: Any) -> int:
        answer = await unary(
            brokers[1], "QueryOffset", message_queue=queue, query_offset_policy=policy, **time
        )
        assert answer.status.code == definition_pb2.OK, answer.status
        return int(answer.offset)

    assert await offset(definition_pb2.BEGINNING) == 0
    assert await offset(definition_pb2.END) == 3
    assert await offset(definition_pb2.TIMESTAMP, timestamp={"seconds": 1}) == 0
    assert await offset(definition_pb2.TIMESTAMP, timestamp=last) <= 2
    assert await offset(definition_pb2.TIMESTAMP, timestamp={"seconds": last.seconds + 60}) == 3
    without = await unary(
        brokers[0],
        "QueryOffset",
        message_queue=queue,
        query_offset_policy=definition_pb2.TIMESTAMP,
    )
    assert without.status.code == definition_pb2.BAD_REQUEST


async def test_a_pull_consumer_follows_its_queue_when_it_moves(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """Offsets go on, the public name stays, a stored offset is found again."""
    await send_to_queue_0(brokers[0], range(1, 6))
    named = {"group": resource(GROUP), "message_queue": queue_of("fifo", 0)}
    await unary(brokers[0], "UpdateOffset", **named, offset=4)
    cluster.stub.move_queue(FIFO, 0, DESTINATION, SOURCE)
    override = cluster.stub.overrides[FIFO, 0]
    await until(lambda: len(override.epochs) == 2 and not override.moving_to)
    await send_to_queue_0(brokers[0], range(6, 9))
    assert (await unary(brokers[1], "GetOffset", **named)).offset == 4
    seen: list[int] = []
    offset = 0
    async with asyncio.timeout(60):
        while offset < 8:
            pulled = await pull(brokers[1], queue_of("fifo", 0), offset, wait_s=1)
            seen += numbers_of(pulled)
            assert pulled.next_offset is not None
            offset = pulled.next_offset
    assert seen == list(range(1, 9))
    await unary(brokers[0], "UpdateOffset", **named, offset=7)
    assert (await unary(brokers[1], "GetOffset", **named)).offset == 7


async def test_what_the_leaders_disk_cannot_read_comes_from_another_replica(
    cluster: ClusterUnderTest,
    brokers: Sequence[ClusterBroker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each replica holds the same bytes; the leader is asked for their places only."""
    offsets = await send_to_queue_0(brokers[0], range(1, 6))
    leader = await cluster.until_led(SOURCE)
    reader = cluster.members[leader].node.engine(SOURCE).fetches._reader
    real: Callable[..., Awaitable[list[bytes | None]]] = type(reader)._read_log

    async def read(self: MessageReader, locations: Sequence[Location]) -> list[bytes | None]:
        if self is not reader:
            return await real(self, locations)
        reader._failed.update({each.raft_index: "Input/output error" for each in locations})
        return [None] * len(locations)

    monkeypatch.setattr(type(reader), "_read_log", read)
    queue = queue_of("fifo", 0)
    async with asyncio.timeout(30):
        # A follower may be a moment behind: then this pull is refused, and the next one is not.
        while not (pulled := await pull(brokers[1], queue, offsets[0])).messages:
            assert pulled.status.code == definition_pb2.TOO_MANY_REQUESTS
    assert [int(each.body) for each in pulled.messages] == list(range(1, 6))
