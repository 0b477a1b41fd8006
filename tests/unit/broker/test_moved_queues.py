"""Queues that moved: where they are popped, appended and asked for; what they are called."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.metadata.metadata import LEADER_CHOOSES, MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted, places_of
from strata_broker.receives.popper import Popper
from strata_broker.receives.targets import Popped, ReceiveTarget
from strata_broker.storage_client import epochs
from strata_broker.storage_client.epochs import epoch_of
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import Look
from strata_mq.requests.errors import Code, RequestError
from strata_testing import until
from tests.unit.broker.popping import new_popper

TOPIC_ID = 7
LONG_MS = 60_000
"""No pop that finds a message waits this long, however slow the machine is."""
SHORT_MS = 60


def topic_row(**fields: Any) -> meta_pb2.Topic:
    """A topic of four queues: 0 and 2 at home in raft group 1, 1 and 3 in raft group 2."""
    topic = meta_pb2.Topic(topic_id=TOPIC_ID, name="t", queue_count=4, slot_base=0, **fields)
    topic.homes.add(raft_group=1, queues=[0, 2])
    topic.homes.add(raft_group=2, queues=[1, 3])
    return topic


def moved(queue: int, *groups: int, deleted: bool = False) -> meta_pb2.Change:
    """The row of a queue whose epochs are in these raft groups, 100 messages each."""
    override = meta_pb2.QueueOverride(topic_id=TOPIC_ID, queue=queue)
    for number, group in enumerate(groups):
        override.epochs.add(epoch=number, start_offset=100 * number, raft_group=group)
    return meta_pb2.Change(queue_override=override, deleted=deleted)


@pytest.fixture
def view() -> MetadataView:
    """Raft groups 1, 2 and 3; slots are striped over the first two."""
    view = MetadataView()
    changes = [
        meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=n, broker_name=f"strata-{n}"))
        for n in (1, 2, 3)
    ]
    changes += [
        meta_pb2.Change(
            slots=meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=1 + slot % 2)
        )
        for slot in range(4)
    ]
    changes.append(meta_pb2.Change(topic=topic_row()))
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    return view


@pytest.fixture
def topic(view: MetadataView) -> TopicRow:
    """The topic."""
    found = view.topic("", "t")
    assert found is not None
    return found


def change(view: MetadataView, *changes: meta_pb2.Change) -> None:
    """Take changes in."""
    view.apply(meta_pb2.WatchResponse(revision=view.revision + 1, changes=changes))


def wanted(view: MetadataView, topic: TopicRow, name: str, queue: int = ANY_QUEUE) -> Wanted:
    """A public queue."""
    home = view.home(topic, name)
    assert home is not None
    return Wanted(home, queue)


def test_a_move_changes_the_owner_and_no_public_name(view: MetadataView, topic: TopicRow) -> None:
    """Appends go to the last epoch; broker names and local ids stay (rule 20)."""
    homes = view.homes(topic)
    change(view, moved(2, 1, 3))
    assert view.owner(topic, 2) == 3
    assert view.owners(topic) == (1, 2, 3)
    assert view.holders(topic) == {1: [0, 2], 2: [1, 3], 3: [2]}
    assert view.homes(topic) == homes
    change(view, moved(2, deleted=True))
    assert view.owners(topic) == (1, 2)


def test_a_slot_that_moves_changes_no_public_name(view: MetadataView, topic: TopicRow) -> None:
    """Homes are kept in the topic's row, so that no client rebuilds what it has."""
    homes = view.homes(topic)
    slots = meta_pb2.SlotRange(first_slot=0, slot_count=4, raft_group=3)
    change(view, meta_pb2.Change(slots=slots))
    assert view.owners(topic) == (3,)
    assert view.homes(topic) == homes
    assert places_of(view, topic, wanted(view, topic, "strata-1")) == [
        PopPlace(3, 0),
        PopPlace(3, 2),
    ]


def test_a_move_that_only_began_changes_nothing(view: MetadataView, topic: TopicRow) -> None:
    """Until the first new epoch is recorded the queue is where its slot is."""
    override = meta_pb2.QueueOverride(topic_id=TOPIC_ID, queue=0, moving_to=3)
    change(view, meta_pb2.Change(queue_override=override))
    assert view.owner(topic, 0) == 1


def test_messages_for_any_queue_reach_moved_ones_too(view: MetadataView, topic: TopicRow) -> None:
    """A raft group's leader spreads over its slots; a queue that moved there is named."""
    assert view.queue_at(topic, 1, b"k") == LEADER_CHOOSES
    change(view, moved(2, 1, 3), moved(0, 1, 2))
    keys = [b"%d" % number for number in range(300)]
    assert {view.queue_at(topic, 3, key) for key in keys} == {2}
    shares = [view.queue_at(topic, 2, key) for key in keys]
    assert set(shares) == {0, LEADER_CHOOSES}
    assert 50 < shares.count(0) < 150
    assert view.queue_at(topic, 2, keys[0]) == shares[0]


def test_a_name_stands_for_all_its_queues_wherever_they_are(
    view: MetadataView, topic: TopicRow
) -> None:
    """The raft group serves what its slots give it; what moved elsewhere is asked for by number."""
    assert places_of(view, topic, wanted(view, topic, "strata-1")) == (PopPlace(1, ANY_QUEUE),)
    assert places_of(view, topic, wanted(view, topic, "strata-1", 2)) == (PopPlace(1, 2),)
    change(view, moved(2, 1, 3))
    assert places_of(view, topic, wanted(view, topic, "strata-1")) == (
        PopPlace(1, ANY_QUEUE),
        PopPlace(3, 2, (1,)),
    )
    assert places_of(view, topic, wanted(view, topic, "strata-1", 2)) == [
        PopPlace(1, 2),
        PopPlace(3, 2, (1,)),
    ]
    # The first epoch is drained and gone.
    change(view, moved(2, 3), moved(0, 2))
    assert places_of(view, topic, wanted(view, topic, "strata-1")) == [
        PopPlace(2, 0),
        PopPlace(3, 2),
    ]


def left(queue: int, raft_group: int, epoch: int = 1) -> storage_pb2.SealedQueue:
    """Return a raft group's note on a queue that went to another raft group."""
    return storage_pb2.SealedQueue(
        queue=queue, next_epoch=epoch, start_offset=100 * epoch, raft_group=raft_group
    )


def test_what_storage_says_of_a_move_holds_until_the_metadata_say_more(
    view: MetadataView, topic: TopicRow
) -> None:
    """A row that tells of less, or a snapshot without it, does not take it back."""
    moves: list[int] = []
    view.on_move(lambda topic_id, _: moves.append(topic_id))
    assert view.learn(topic, 1, [left(2, 3)])
    assert moves == [TOPIC_ID]
    assert not view.learn(topic, 1, [left(2, 3)]), "it is no news twice"
    assert view.owner(topic, 2) == 3
    assert view.is_opening(topic, 3, 2)
    assert places_of(view, topic, wanted(view, topic, "strata-1", 2))[1] == PopPlace(3, 2, (1,))
    change(view, moved(2, 1))
    assert view.owner(topic, 2) == 3
    rows = [
        meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=n, broker_name=f"strata-{n}"))
        for n in (1, 2, 3)
    ]
    rows.append(meta_pb2.Change(topic=topic_row()))
    view.apply(meta_pb2.WatchResponse(revision=9, snapshot=True, changes=rows))
    assert view.owner(topic, 2) == 3
    change(view, moved(2, 1, 2))
    assert view.owner(topic, 2) == 2
    assert view.learn(topic, 2, [left(2, 3, 2)])
    change(view, moved(2, deleted=True))
    assert not view.overrides(topic)


def test_what_storage_said_of_a_topic_goes_with_it(view: MetadataView, topic: TopicRow) -> None:
    """Its rows are deleted; nothing stays that no row told, and nothing is learned later."""
    assert view.learn(topic, 1, [left(2, 3)])
    change(view, moved(4, 1, 2))
    assert view.learn(topic, 2, [left(4, 3, 2)])
    change(
        view,
        moved(4, deleted=True),
        meta_pb2.Change(topic=topic_row(), deleted=True),
    )
    assert not view.overrides(topic)
    assert not view.learn(topic, 1, [left(2, 3)]), "an answer that comes late"
    assert not view.overrides(topic)
    change(view, meta_pb2.Change(topic=topic_row()))
    assert not view.overrides(topic), "nor is it remembered for whoever has the id"


def test_an_epoch_between_the_row_and_what_was_learned_is_not_left_out(
    view: MetadataView, topic: TopicRow
) -> None:
    """An ordered group gets nothing of the last epoch before the one between is drained."""
    assert view.learn(topic, 1, [left(2, 2, 1)])
    assert view.learn(topic, 2, [left(2, 3, 2)])
    # A row that knows the first epoch only: its last one is two behind.
    row = meta_pb2.QueueOverride(topic_id=TOPIC_ID, queue=2)
    row.epochs.add(epoch=0, raft_group=1)
    change(view, meta_pb2.Change(queue_override=row))
    (place,) = [
        place
        for place in places_of(view, topic, wanted(view, topic, "strata-1", 2))
        if place.raft_group == 3
    ]
    assert place.older == (1, 2)
    assert epoch_of(view, topic, 2, 50).raft_group == 1
    assert epoch_of(view, topic, 2, 500).raft_group == 3


class FakeStorageClient:
    """Holdings of raft groups, by (raft group, queue): message numbers and whether they move."""

    def __init__(self) -> None:
        self.ready: dict[tuple[int, int], deque[int]] = {}
        self.gone: set[tuple[int, int]] = set()
        # (raft group, queue) -> cursor and next offset of the consumer group
        self.states: dict[tuple[int, int], tuple[int, int]] = {}
        self.pops: list[tuple[int, int]] = []
        # Raft groups that do not answer about consumers.
        self.silent: set[int] = set()
        # (raft group, queue) -> what has left it
        self.left: dict[tuple[int, int], list[storage_pb2.SealedQueue]] = {}

    async def pop(
        self,
        request: storage_pb2.PopRequest,
        ticket: PopTicket | None = None,
        look: Look | None = None,
    ) -> storage_pb2.PopResponse:
        assert not request.wait_ms, "no pop waits at a storage node"
        place = (request.raft_group, request.queue)
        self.pops.append(place)
        if place in self.gone:
            raise errors.refused(storage_pb2.OUTCOME_WRONG_GROUP)
        sealed = self.left.get(place, [])
        if len(sealed) != request.known_sealed:
            return storage_pb2.PopResponse(moved=True, sealed=sealed)
        await asyncio.sleep(0)
        response = storage_pb2.PopResponse()
        if self.ready.get(place):
            response.messages.add(queue=max(request.queue, 0), offset=self.ready[place].popleft())
        return response

    async def call(
        self,
        raft_group: int,
        rpc: str,
        request: Any,
        response_type: type[Any],
        *,
        timeout_s: float,
    ) -> storage_pb2.GetConsumerStateResponse:
        assert rpc == "GetConsumerState"
        if raft_group in self.silent:
            raise errors.timed_out(f"raft group {raft_group} has no leader")
        response = storage_pb2.GetConsumerStateResponse()
        for queue in request.queues:
            cursor, next_offset = self.states[raft_group, queue]
            response.queues.add(queue=queue, cursor=cursor, next_offset=next_offset)
        return response


@pytest.fixture
def storage() -> FakeStorageClient:
    """Empty raft groups."""
    return FakeStorageClient()


@pytest.fixture
def popper(view: MetadataView, storage: FakeStorageClient) -> Popper:
    """Pauses of a millisecond."""
    return new_popper(view, storage)


async def pop(
    popper: Popper,
    topic: TopicRow,
    what: Wanted,
    *,
    fifo: bool = False,
    wait_ms: int = LONG_MS,
    ticket: PopTicket | None = None,
) -> Popped:
    """Pop; with a wait that ends only if the message does not come."""

    def request(topic: TopicRow, place: PopPlace) -> storage_pb2.PopRequest:
        return storage_pb2.PopRequest(raft_group=place.raft_group, queue=place.queue, fifo=fifo)

    ticket = ticket or PopTicket(1)
    return await popper.pop(ReceiveTarget(topic, what, 5), request, wait_ms, ticket)


async def test_what_lies_under_the_own_name_comes_first(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """Then what any other raft group of the topic has; a single queue stays bound."""
    storage.ready[1, ANY_QUEUE] = deque([1])
    storage.ready[2, ANY_QUEUE] = deque([2, 3])
    what = wanted(view, topic, "strata-1")
    groups = [(await pop(popper, topic, what)).raft_group for _ in range(2)]
    assert groups == [1, 2]
    bound = await pop(popper, topic, wanted(view, topic, "strata-1", 2), wait_ms=SHORT_MS)
    assert not bound.response.messages


async def test_both_places_of_a_moved_queue_are_served(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """Messages that are ready anywhere are found without waiting elsewhere; no place starves."""
    change(view, moved(2, 1, 3))
    storage.ready[1, ANY_QUEUE] = deque(range(10))
    storage.ready[3, 2] = deque(range(100, 110))
    what = wanted(view, topic, "strata-1")
    groups = [(await pop(popper, topic, what)).raft_group for _ in range(20)]
    assert groups.count(1) == groups.count(3) == 10


async def test_a_message_that_comes_later_is_found_at_any_place(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """Also where nobody tells of messages: it is looked at again and again."""
    change(view, moved(2, 1, 3))
    what = wanted(view, topic, "strata-1")
    waiting = asyncio.ensure_future(pop(popper, topic, what, wait_ms=LONG_MS))
    await until(lambda: len(storage.pops) >= 9)
    storage.ready[3, 2] = deque([100])
    popped = await waiting
    assert (popped.raft_group, popped.response.messages[0].offset) == (3, 100)


async def test_an_ordered_group_gets_the_old_epoch_first(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """Nothing of epoch n + 1 is served before epoch n is acked to its end (rule 18)."""
    change(view, moved(2, 1, 3))
    storage.ready[3, 2] = deque([100, 101])
    storage.states[1, 2] = (99, 100)
    what = wanted(view, topic, "strata-1", 2)
    none = await pop(popper, topic, what, fifo=True, wait_ms=SHORT_MS)
    assert not none.response.messages
    storage.states[1, 2] = (100, 100)
    popped = await pop(popper, topic, what, fifo=True)
    assert (popped.raft_group, popped.response.messages[0].offset) == (3, 100)


async def test_a_receive_that_waits_looks_where_a_queue_went(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """Else it would find what is sent to the new place at the end of its wait only."""
    waiting = asyncio.ensure_future(pop(popper, topic, wanted(view, topic, "strata-1", 2)))
    await until(lambda: storage.pops)
    assert set(storage.pops) == {(1, 2)}
    storage.ready[3, 2] = deque([100])
    change(view, moved(2, 1, 3))
    assert (await waiting).raft_group == 3


@pytest.mark.parametrize("queue", [ANY_QUEUE, 2])
async def test_a_pop_learns_of_a_move_before_the_metadata_tell(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient, queue: int
) -> None:
    """The raft group says once what has left it; then both places are asked."""
    storage.left[1, queue] = [left(2, 3)]
    storage.ready[3, 2] = deque([100, 101])
    what = wanted(view, topic, "strata-1", queue)
    first, second = await pop(popper, topic, what), await pop(popper, topic, what)
    assert [one.response.messages[0].offset for one in (first, second)] == [100, 101]
    assert first.raft_group == second.raft_group == 3
    before = len(storage.pops)
    storage.ready[1, queue] = deque([7])
    assert (await pop(popper, topic, what)).response.messages[0].offset == 7
    assert len(storage.pops) <= before + 2, "it is not told again"
    # The queue came back, and is gone again: the number tells that there is news.
    storage.left[1, queue] = []
    storage.ready[1, queue] = deque([8])
    assert (await pop(popper, topic, what)).response.messages[0].offset == 8


async def test_a_place_that_moved_away_is_looked_up_again(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """WRONG_GROUP means that the metadata come in a moment; the client sees no error."""
    storage.gone.add((1, 2))
    waiting = asyncio.ensure_future(pop(popper, topic, wanted(view, topic, "strata-1", 2)))
    await until(lambda: storage.pops)
    storage.ready[3, 2] = deque([100])
    change(view, moved(2, 3))
    assert (await waiting).raft_group == 3


async def test_a_queue_that_nobody_serves_is_forbidden(
    view: MetadataView, topic: TopicRow, popper: Popper
) -> None:
    """As in the real product: no readable queue."""
    slots = meta_pb2.SlotRange(first_slot=0, slot_count=4)
    change(view, meta_pb2.Change(slots=slots, deleted=True))
    with pytest.raises(RequestError) as failure:
        await pop(popper, topic, wanted(view, topic, "strata-1"))
    assert failure.value.code is Code.FORBIDDEN


def test_an_offset_is_found_in_its_epoch(view: MetadataView, topic: TopicRow) -> None:
    """Epochs follow one another in offsets."""
    change(view, moved(2, 1, 3))
    found = [epochs.holder_of(view, topic, 2, offset) for offset in (0, 99, 100, 5000)]
    assert found == [(1,), (1,), (3,), (3,)]
    assert epochs.holder_of(view, topic, 1, 0) == (2,)
    assert epochs.holder_of(view, topic, 9, 0) == ()


def test_epochs_are_shown_as_one_queue() -> None:
    """The range is that of all; the cursor is in the oldest epoch that is not consumed."""
    status = admin_pb2.QueueStatus(queue=2, min_offset=100, next_offset=100)
    epochs.join_offsets(status, admin_pb2.QueueStatus(min_offset=40, next_offset=100))
    epochs.join_offsets(status, admin_pb2.QueueStatus(min_offset=100, next_offset=130))
    assert (status.min_offset, status.next_offset) == (40, 130)
    state = storage_pb2.ConsumerQueueState
    (joined,) = epochs.join_states(
        [
            state(queue=2, min_offset=100, next_offset=130, cursor=100, head=100),
            state(queue=2, min_offset=40, next_offset=100, cursor=60, head=70, in_flight=10),
        ]
    )
    assert (joined.cursor, joined.next_offset, joined.in_flight) == (60, 130, 10)


async def test_an_older_epoch_without_a_leader_is_no_error_of_a_receive(
    view: MetadataView, topic: TopicRow, popper: Popper, storage: FakeStorageClient
) -> None:
    """It may not be drained: its newer epochs wait, what is elsewhere is served, others say why."""
    change(view, moved(2, 1, 3))
    storage.ready[3, 2] = deque([100])
    storage.ready[2, ANY_QUEUE] = deque([7])
    storage.silent.add(1)
    what = wanted(view, topic, "strata-1")
    popped = await pop(popper, topic, what, fifo=True)
    assert (popped.raft_group, popped.response.messages[0].offset) == (2, 7)
    home = view.home(topic, "strata-1")
    assert home is not None
    ticket = PopTicket(2)
    none = await pop(popper, topic, Wanted(home, 2), fifo=True, wait_ms=SHORT_MS, ticket=ticket)
    assert not none.response.messages
    assert "raft group 1" in ticket.trouble()
    storage.silent.clear()
    storage.states[1, 2] = (100, 100)
    popped = await pop(popper, topic, Wanted(home, 2), fifo=True, ticket=ticket)
    assert (popped.raft_group, popped.response.messages[0].offset) == (3, 100)
    assert ticket.trouble() == ""
