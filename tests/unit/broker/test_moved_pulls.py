"""Pulls of a queue that moved, while the metadata here lag behind."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_mq.slots import slot_of
from strata_testing import until
from strata_testing.broker.client import message
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_meta import RAFT_GROUPS, FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

FORMER, PRESENT = RAFT_GROUPS[:2]


class MovedQueue:
    """A queue with the offsets 0 to 99 in one raft group and 100 to 199 in the next one.

    Attributes:
        told: what the former raft group says of the move; None: it has nothing of the queue.
        asked: the raft groups of fetches, in order.
    """

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.told: storage_pb2.SealedQueue | None = storage_pb2.SealedQueue(
            queue=queue, next_epoch=1, start_offset=100, raft_group=PRESENT
        )
        self.asked: list[int] = []

    def fetch(self, request: storage_pb2.FetchRequest, _: object) -> storage_pb2.FetchResponse:
        self.asked.append(request.raft_group)
        first, end = (0, 100) if request.raft_group == FORMER else (100, 200)
        if request.raft_group == FORMER and self.told is None:
            first = end = 0
        response = storage_pb2.FetchResponse(
            min_offset=first, next_offset=end, resume_offset=min(request.offset + 1, end)
        )
        if first <= request.offset < end:
            data = message("orders", request.offset).SerializeToString()
            response.messages.add(queue=self.queue, offset=request.offset, message=data)
        return response

    def offsets(
        self, request: storage_pb2.GetOffsetsRequest, _: object
    ) -> storage_pb2.GetOffsetsResponse:
        response = storage_pb2.GetOffsetsResponse()
        if request.raft_group == PRESENT:
            response.queues.add(queue=self.queue, min_offset=100, next_offset=200)
        elif self.told is None:
            response.refusal.outcome = storage_pb2.OUTCOME_WRONG_GROUP
        else:
            response.queues.add(queue=self.queue, min_offset=0, next_offset=100)
            response.sealed.append(self.told)
        return response


@pytest.fixture
async def moved(
    app: BrokerApp, storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> MovedQueue:
    """The first queue of `orders` at the raft group that the broker believes in."""
    topic = app.view.topic("", "orders")
    assert topic is not None
    home = next(one for one in app.view.homes(topic) if one.raft_group == FORMER)
    queue = MovedQueue(home.queues[0])
    monkeypatch.setattr(storage, "_fetch", queue.fetch, raising=False)
    monkeypatch.setattr(storage, "_getoffsets", queue.offsets)
    return queue


async def pull(edge: FakeEdge, offset: int) -> list[service_pb2.PullMessageResponse]:
    """Pull a message at an offset of the queue; return what the client reads."""
    request = service_pb2.PullMessageRequest(
        group=definition_pb2.Resource(name="g"),
        message_queue=definition_pb2.MessageQueue(
            topic=definition_pb2.Resource(name="orders"),
            broker=definition_pb2.Broker(name=f"strata-{FORMER}"),
        ),
        offset=offset,
        batch_size=1,
    )
    info = FakeCall("PullMessage", b"", time_left_s=20.0)
    handler = edge.server_streams["/apache.rocketmq.v2.MessagingService/PullMessage"]
    async with asyncio.timeout(30):
        answers = [
            data
            async for some in handler(request.SerializeToString(), info)
            for data in ([some] if isinstance(some, bytes) else some)
        ]
    return [service_pb2.PullMessageResponse.FromString(data) for data in answers]


async def test_an_offset_of_the_next_epoch_is_not_behind_the_end_of_the_queue(
    edge: FakeEdge, moved: MovedQueue
) -> None:
    """Told the end of the former epoch, a consumer would go back and read all since then again."""
    status, got, following = await pull(edge, 150)
    assert status.status.code == definition_pb2.OK, status.status.message
    assert got.message.system_properties.queue_offset == 150
    assert following.next_offset == 151
    assert moved.asked == [FORMER, PRESENT]


async def test_a_raft_group_that_has_nothing_of_a_queue_does_not_say_where_it_ends(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta, moved: MovedQueue
) -> None:
    """The slot went elsewhere: a consumer that is told offset 0 begins with the first message."""
    moved.told = None
    topic = app.view.topic("", "orders")
    assert topic is not None
    pulling = asyncio.ensure_future(pull(edge, 150))
    await until(lambda: moved.asked)
    slots = meta_pb2.SlotRange(
        first_slot=slot_of(topic.slot_base, moved.queue), slot_count=1, raft_group=PRESENT
    )
    meta.put(meta_pb2.Change(slots=slots))
    status, got, _ = await pulling
    assert status.status.code == definition_pb2.OK, status.status.message
    assert got.message.system_properties.queue_offset == 150


@pytest.mark.parametrize(("offset", "nearest"), [(201, 200), (1_000, 200)])
async def test_an_offset_that_the_last_epoch_does_not_have_is_illegal(
    edge: FakeEdge, moved: MovedQueue, offset: int, nearest: int
) -> None:
    """The nearest one is that of the last epoch."""
    status, following = await pull(edge, offset)
    assert status.status.code == definition_pb2.ILLEGAL_OFFSET
    assert following.next_offset == nearest
