"""Slots that change hands: what stays, what goes, who waits where (rule 17)."""

from __future__ import annotations

import asyncio

import pytest

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import LEADER_CHOOSES, MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted, places_of
from strata_broker.receives.receive import topic_ref
from strata_broker.receives.targets import ReceiveTarget
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import Look
from strata_testing import until
from tests.unit.broker.popping import NODE, new_popper

TOPIC_ID, OTHER_TOPIC_ID = 7, 8


@pytest.fixture
def view() -> MetadataView:
    """Raft groups 1 and 2 own every other slot; a topic in slots 0 to 3, another one far away."""
    view = MetadataView()
    near = meta_pb2.Topic(topic_id=TOPIC_ID, name="t", queue_count=4)
    far = meta_pb2.Topic(topic_id=OTHER_TOPIC_ID, name="far", queue_count=2, slot_base=100)
    for topic, base in ((near, 0), (far, 100)):
        topic.homes.add(raft_group=1, queues=range(0, topic.queue_count, 2))
        topic.homes.add(raft_group=2, queues=range(1, topic.queue_count, 2))
        for slot in range(base, base + topic.queue_count):
            give(view, slot, 1 + slot % 2)
    for number in (1, 2, 3):
        row = meta_pb2.RaftGroup(raft_group=number, broker_name=f"strata-{number}")
        tell(view, meta_pb2.Change(raft_group=row))
    tell(view, meta_pb2.Change(topic=near), meta_pb2.Change(topic=far))
    return view


def tell(view: MetadataView, *changes: meta_pb2.Change) -> None:
    view.apply(meta_pb2.WatchResponse(revision=view.revision + 1, changes=changes))


def give(view: MetadataView, slot: int, raft_group: int) -> None:
    row = meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=raft_group)
    tell(view, meta_pb2.Change(slots=row))


def stay(view: MetadataView, queue: int, *epochs: tuple[int, int]) -> None:
    """Write the row of a queue with (epoch, raft group)s."""
    row = meta_pb2.QueueOverride(
        topic_id=TOPIC_ID,
        queue=queue,
        epochs=[meta_pb2.Epoch(epoch=epoch, raft_group=group) for epoch, group in epochs],
    )
    tell(view, meta_pb2.Change(queue_override=row))


def row_of(view: MetadataView, name: str = "t") -> TopicRow:
    topic = view.topic("", name)
    assert topic is not None
    return topic


def places(view: MetadataView, name: str) -> list[PopPlace]:
    home = view.home(row_of(view), name)
    assert home is not None
    return list(places_of(view, row_of(view), Wanted(home, ANY_QUEUE)))


def test_queues_that_stayed_are_served_as_before(view: MetadataView) -> None:
    """Their slots are gone, their raft group's "any queue" means them still: nothing is slower."""
    before = places(view, "strata-1")
    for queue in (0, 2):
        stay(view, queue, (0, 1))
        give(view, queue, 3)
    topic = row_of(view)
    assert places(view, "strata-1") == before == [PopPlace(1, ANY_QUEUE)]
    assert view.owners(topic) == (1, 2)
    assert view.queue_at(topic, 1, b"k") == LEADER_CHOOSES


def test_queues_that_went_are_asked_for_by_number(view: MetadataView) -> None:
    """Under the name that they had; appends for any queue reach them where they are."""
    stay(view, 0, (0, 1))
    for queue in (0, 2):
        give(view, queue, 3)
    topic = row_of(view)
    assert places(view, "strata-1") == [PopPlace(1, ANY_QUEUE), PopPlace(3, 2)]
    assert view.owners(topic) == (1, 2, 3)
    assert view.queue_at(topic, 3, b"k") == LEADER_CHOOSES


def test_a_queue_that_stayed_may_move_on(view: MetadataView) -> None:
    """Its first epoch is covered where it stayed; the next one is asked for by number."""
    give(view, 0, 3)
    stay(view, 0, (0, 1), (1, 2))
    topic = row_of(view)
    assert places(view, "strata-1") == [PopPlace(1, ANY_QUEUE), PopPlace(2, 0, (1,))]
    assert view.is_any(topic, 1, 0)
    assert not view.is_any(topic, 2, 0)
    keys = [b"%d" % number for number in range(200)]
    assert {view.queue_at(topic, 2, key) for key in keys} == {0, LEADER_CHOOSES}
    stay(view, 0, (1, 2))
    assert places(view, "strata-1") == [PopPlace(1, ANY_QUEUE), PopPlace(2, 0)]


def test_a_queue_that_came_is_asked_for_by_number_though_its_slot_is_there(
    view: MetadataView,
) -> None:
    """Served as "any queue", its new epoch would overtake the old one (rule 18)."""
    give(view, 0, 3)
    stay(view, 0, (0, 1), (1, 3))
    topic = row_of(view)
    assert places(view, "strata-1") == [PopPlace(1, ANY_QUEUE), PopPlace(3, 0, (1,))]
    assert not view.is_any(topic, 3, 0)
    assert {view.queue_at(topic, 3, b"%d" % number) for number in range(20)} == {0}


def test_only_slots_with_another_owner_are_told(view: MetadataView) -> None:
    """A snapshot that says the same again gives up nothing that waits."""
    told: list[set[int]] = []
    view.on_slots(lambda slots: told.append(set(slots)))
    give(view, 0, 1)
    give(view, 1, 3)
    assert told == [{1}]
    rows = [meta_pb2.SlotRange(first_slot=0, slot_count=1, raft_group=1)]
    rows += [meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=3) for slot in (1, 2)]
    rows += [meta_pb2.SlotRange(first_slot=3, slot_count=1, raft_group=2)]
    rows += [
        meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=1 + slot % 2)
        for slot in (100, 101)
    ]
    changes = [meta_pb2.Change(slots=row) for row in rows]
    response = meta_pb2.WatchResponse(revision=99, snapshot=True, changes=changes)
    view.apply(response)
    assert told == [{1}, {2}]


def test_storage_is_told_which_topics_have_no_slots(view: MetadataView) -> None:
    """A queue of an ordinary topic may have the number of a raft group too (rule 26)."""
    assert not topic_ref(row_of(view)).dead_letter
    dead_letters = meta_pb2.Topic(topic_id=9, name="d", type=meta_pb2.TOPIC_TYPE_DEAD_LETTER)
    tell(view, meta_pb2.Change(topic=dead_letters))
    assert topic_ref(row_of(view, "d")).dead_letter


class EmptyStorage:
    """Raft groups without messages, which tell when some come."""

    def __init__(self) -> None:
        self.pops: list[tuple[int, int, int]] = []

    async def pop(
        self,
        request: storage_pb2.PopRequest,
        ticket: PopTicket | None = None,
        look: Look | None = None,
    ) -> storage_pb2.PopResponse:
        assert look is not None
        look.asks(NODE)
        self.pops.append((request.topic.topic_id, request.raft_group, request.queue))
        return storage_pb2.PopResponse(told_later=True)


async def test_who_waits_for_a_queue_whose_slot_went_looks_again(view: MetadataView) -> None:
    """Else what is sent to it is found at the end of the wait only; others wait on."""
    storage = EmptyStorage()
    popper = new_popper(view, storage)

    def pop(name: str) -> asyncio.Future[object]:
        topic = row_of(view, name)
        home = view.home(topic, "strata-1")
        assert home is not None

        def request(topic: TopicRow, place: PopPlace) -> storage_pb2.PopRequest:
            return storage_pb2.PopRequest(
                raft_group=place.raft_group, topic=topic_ref(topic), queue=place.queue
            )

        target = ReceiveTarget(topic, Wanted(home, ANY_QUEUE), 5)
        return asyncio.ensure_future(popper.pop(target, request, 1_500, PopTicket(1)))

    waiting = [pop("t"), pop("far")]
    await until(lambda: {each[0] for each in storage.pops} == {TOPIC_ID, OTHER_TOPIC_ID})
    others = [each for each in storage.pops if each[0] == OTHER_TOPIC_ID]
    give(view, 2, 3)
    await until(lambda: (TOPIC_ID, 3, 2) in storage.pops)
    assert [each for each in storage.pops if each[0] == OTHER_TOPIC_ID] == others
    for each in waiting:
        await each
