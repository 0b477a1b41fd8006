"""Questions about all queues of a topic, while the metadata here lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_testing.leaping_loop import LoopClock

TOPIC_ID = 7


class FakeStorageClient:
    """Raft groups with the ends of their queues, and where those went that have left."""

    def __init__(self) -> None:
        self.ends: dict[int, dict[int, int]] = {1: {0: 10, 1: 5}, 2: {}}
        self.left: dict[int, list[storage_pb2.SealedQueue]] = {1: [], 2: []}
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        # Actions after so many calls.
        self.after: dict[int, Any] = {}
        # Raft groups that do not answer, and calls that wait for them.
        self.silent: set[int] = set()
        self.waiting = 0

    async def call(
        self, raft_group: int, rpc: str, request: Any, response_type: type[Any], **_: Any
    ) -> storage_pb2.GetOffsetsResponse:
        queues = tuple(request.queues)
        self.asked.append((raft_group, queues))
        if then := self.after.pop(len(self.asked), None):
            then()
        if raft_group in self.silent:
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
        ends = self.ends[raft_group]
        if any(queue not in ends for queue in queues):
            raise errors.refused(storage_pb2.OUTCOME_WRONG_GROUP)
        response = storage_pb2.GetOffsetsResponse(
            sealed=[one for one in self.left[raft_group] if one.queue in queues]
        )
        for queue in queues:
            response.queues.add(queue=queue, next_offset=ends[queue])
        return response


@pytest.fixture
def view() -> MetadataView:
    """Two raft groups; the first has the slots of both queues."""
    view = MetadataView()
    changes = [
        meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=n, broker_name=f"strata-{n}"))
        for n in (1, 2)
    ]
    changes.append(meta_pb2.Change(slots=meta_pb2.SlotRange(slot_count=4096, raft_group=1)))
    topic = meta_pb2.Topic(topic_id=TOPIC_ID, name="t", queue_count=2)
    changes.append(meta_pb2.Change(topic=topic))
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    return view


@pytest.fixture
def topic(view: MetadataView) -> TopicRow:
    """The topic."""
    found = view.topic("", "t")
    assert found is not None
    return found


@pytest.fixture
def storage() -> FakeStorageClient:
    """Storage."""
    return FakeStorageClient()


async def ends(view: MetadataView, topic: TopicRow, storage: FakeStorageClient) -> dict[int, int]:
    """Ask for the ends of all queues."""

    def request(raft_group: int, queues: Sequence[int]) -> storage_pb2.GetOffsetsRequest:
        return storage_pb2.GetOffsetsRequest(raft_group=raft_group, queues=queues)

    calls = HolderCalls(view, storage, LoopClock(), timeout_s=0.2)  # type: ignore[arg-type]
    answers = await calls.of_topic(topic, "GetOffsets", storage_pb2.GetOffsetsResponse, request)
    found: dict[int, int] = {}
    for _, answer in answers:
        for queue in answer.queues:
            found[queue.queue] = max(found.get(queue.queue, 0), queue.next_offset)
    return found


def moved(raft_group: int) -> storage_pb2.SealedQueue:
    """Queue 0 went on elsewhere."""
    return storage_pb2.SealedQueue(queue=0, next_epoch=1, start_offset=10, raft_group=raft_group)


async def test_one_question_to_whom_the_metadata_name(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """Where nothing moved nobody is asked twice."""
    assert await ends(view, topic, storage) == {0: 10, 1: 5}
    assert storage.asked == [(1, (0, 1))]


async def test_a_sealed_end_is_not_the_end(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """The holder of the next epoch is asked, though the metadata does not name it yet."""
    storage.left[1] = [moved(2)]
    storage.ends[2] = {0: 14}
    assert await ends(view, topic, storage) == {0: 14, 1: 5}
    # From then on it is known.
    storage.asked.clear()
    assert await ends(view, topic, storage) == {0: 14, 1: 5}
    assert sorted(storage.asked) == [(1, (0, 1)), (2, (0,))]


async def test_metadata_that_come_with_the_answer_change_who_is_asked(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """The answer says where the queue went, which this broker has heard since it asked."""
    storage.left[1] = [moved(2)]
    storage.ends[2] = {0: 14}
    epochs = [meta_pb2.Epoch(raft_group=1), meta_pb2.Epoch(epoch=1, start_offset=10, raft_group=2)]
    row = meta_pb2.QueueOverride(topic_id=TOPIC_ID, queue=0, epochs=epochs)
    response = meta_pb2.WatchResponse(revision=2, changes=[meta_pb2.Change(queue_override=row)])
    storage.after[1] = lambda: view.apply(response)
    assert await ends(view, topic, storage) == {0: 14, 1: 5}
    assert sorted(storage.asked) == [(1, (0, 1)), (1, (0, 1)), (2, (0,))]


async def test_a_queue_that_is_not_open_yet_ends_where_it_was_sealed(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """Nothing can have been appended to it."""
    storage.left[1] = [moved(2)]
    assert await ends(view, topic, storage) == {0: 10, 1: 5}


async def test_old_metadata_are_waited_for(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """A slot that moved: the raft group refuses, until the metadata name the next one."""
    storage.ends = {1: {}, 2: {0: 10, 1: 5}}
    slots = meta_pb2.SlotRange(slot_count=4096, raft_group=2)
    response = meta_pb2.WatchResponse(revision=2, changes=[meta_pb2.Change(slots=slots)])
    storage.after[4] = lambda: view.apply(response)
    assert await ends(view, topic, storage) == {0: 10, 1: 5}


async def test_metadata_that_never_come_are_an_error(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """An answer without a queue would be taken for the whole."""
    storage.ends = {1: {0: 10}, 2: {}}
    with pytest.raises(errors.MovedError):
        await ends(view, topic, storage)


async def test_the_other_calls_end_with_the_first_failure(
    view: MetadataView, topic: TopicRow, storage: FakeStorageClient
) -> None:
    """One raft group says that a queue moved, one is silent: no round leaves calls behind."""
    slots = meta_pb2.SlotRange(first_slot=1, slot_count=1, raft_group=2)
    row = meta_pb2.Change(slots=slots)
    view.apply(meta_pb2.WatchResponse(revision=2, changes=[row]))
    storage.ends = {1: {}, 2: {0: 10, 1: 5}}
    storage.silent = {2}
    with pytest.raises(errors.MovedError):
        await ends(view, topic, storage)
    assert len(storage.asked) > 4, "it was asked again and again"
    for _ in range(5):
        await asyncio.sleep(0)
    assert storage.waiting == 0
