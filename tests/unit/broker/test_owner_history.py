"""Former owners of queues are remembered as long as repeats are, and looked for when unknown."""

from __future__ import annotations

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.owner_history import OwnerHistory

TOPIC_ID = 7
WINDOW_MS = 600_000
BEGIN_MS = 1_000_000
MADE_AT = 50
ALL = [1, 2, 3, 4]


class Seen:
    """A view, what a broker remembers of it, and the time."""

    def __init__(self, kind: meta_pb2.TopicType.ValueType = meta_pb2.TOPIC_TYPE_NORMAL) -> None:
        self.kind = kind
        self.now_ms = BEGIN_MS
        self.view = MetadataView()
        self.history = OwnerHistory(self.view, lambda: self.now_ms, WINDOW_MS)

    @property
    def topic(self) -> TopicRow:
        """The topic: four queues in slots 0 to 3."""
        topic = self.view.topic("", "t")
        assert topic is not None
        return topic

    def begin(self, *changes: meta_pb2.Change, slots_at: int = 1, snapshot: bool = True) -> None:
        """Get all rows: the topic, raft groups 1 to 4, and raft group 1 as the owner of slots."""
        topic = meta_pb2.Topic(
            topic_id=TOPIC_ID, name="t", type=self.kind, queue_count=4, revision=MADE_AT
        )
        rows = [meta_pb2.Change(topic=topic), slots(1, count=100, revision=slots_at)]
        for number in ALL:
            row = meta_pb2.RaftGroup(raft_group=number, broker_name=f"strata-{number}")
            rows.append(meta_pb2.Change(raft_group=row))
        response = meta_pb2.WatchResponse(revision=100, snapshot=snapshot)
        response.changes.extend((*rows, *changes))
        self.view.apply(response)

    def tell(self, *changes: meta_pb2.Change) -> None:
        """Get news."""
        revision = self.view.revision + 1
        self.view.apply(meta_pb2.WatchResponse(revision=revision, changes=changes))

    def remembers(self) -> tuple[int, list[int]]:
        """Return when the topic's owners changed, and where an earlier send may be."""
        return self.history.changed_ms(self.topic), self.history.raft_groups(self.topic)


def slots(owner: int, first: int = 0, count: int = 1, revision: int = 0) -> meta_pb2.Change:
    row = meta_pb2.SlotRange(
        first_slot=first, slot_count=count, raft_group=owner, revision=revision
    )
    return meta_pb2.Change(slots=row)


def queue(*epochs: tuple[int, int, int], number: int = 0, moving_to: int = 0) -> meta_pb2.Change:
    """Return the row of a queue with (epoch, raft group, begin)s."""
    row = meta_pb2.QueueOverride(topic_id=TOPIC_ID, queue=number, moving_to=moving_to)
    for epoch, raft_group, start_offset in epochs:
        row.epochs.add(epoch=epoch, raft_group=raft_group, start_offset=start_offset)
    return meta_pb2.Change(queue_override=row)


def test_nothing_is_remembered_where_nothing_changed() -> None:
    """Neither of slots that are older than the topic, nor of slots of other topics."""
    seen = Seen()
    seen.begin()
    assert seen.remembers() == (0, [1])
    seen.tell(slots(2, first=4, count=90))
    assert seen.remembers() == (0, [1])


def test_former_owners_of_slots_are_remembered_for_the_window() -> None:
    """Each for as long as it was not an owner."""
    seen = Seen()
    seen.begin()
    seen.now_ms += WINDOW_MS
    seen.tell(slots(2, first=3))
    assert seen.remembers() == (seen.now_ms, [1, 2])
    seen.tell(slots(2, count=4))
    assert seen.remembers() == (seen.now_ms, [2, 1])
    seen.now_ms += WINDOW_MS
    seen.tell(slots(3, count=4))
    assert seen.remembers() == (seen.now_ms, [3, 1, 2])
    seen.now_ms += 1
    assert seen.remembers() == (seen.now_ms - 1, [3, 2])
    seen.now_ms += WINDOW_MS
    assert seen.remembers() == (0, [3])


def test_former_owners_of_queues_are_remembered_although_their_epochs_are_drained() -> None:
    """An empty queue is drained at once; a message that waits there is not."""
    seen = Seen(meta_pb2.TOPIC_TYPE_DELAY)
    seen.begin()
    seen.tell(queue((0, 1, 0), moving_to=2))
    assert seen.history.changed_ms(seen.topic) == 0
    seen.tell(*(queue((0, 1, 0), (1, 2, 0), number=number) for number in range(4)))
    seen.now_ms += 1
    seen.tell(*(queue((1, 2, 0), number=number) for number in range(4)))
    assert seen.remembers() == (BEGIN_MS, [2, 1])
    seen.now_ms += WINDOW_MS
    assert seen.remembers() == (0, [2])


def test_nothing_is_remembered_of_a_deleted_topic() -> None:
    """Else deleted topics would take the room of topics whose queues moved."""
    seen = Seen()
    seen.begin()
    seen.tell(queue((0, 1, 0), (1, 2, 9)))
    topic = seen.topic
    assert seen.history.changed_ms(topic) == BEGIN_MS
    moved, row = queue((0, 1, 0), (1, 2, 9)), meta_pb2.Topic(topic_id=TOPIC_ID, name="t")
    moved.deleted = True
    seen.tell(moved, meta_pb2.Change(topic=row, deleted=True))
    assert seen.history.changed_ms(topic) == 0


def test_a_queue_that_stays_when_its_slot_leaves_has_the_same_owner() -> None:
    """The row of the queue is written with the row of the slot."""
    seen = Seen()
    seen.begin()
    seen.tell(queue((0, 1, 0)), queue((0, 1, 0), number=1))
    assert seen.remembers() == (0, [1])


@pytest.mark.parametrize(
    ("begin", "later", "expected"),
    [((1, 1, 0), (), 0), ((0, 1, 0), (1, 2, 0), 0), ((0, 1, 0), (1, 2, 9), BEGIN_MS)],
)
def test_message_groups_are_looked_for_only_where_they_may_be(
    begin: tuple[int, int, int], later: tuple[int, int, int] | tuple[()], expected: int
) -> None:
    """Their queue names where they are: nothing, if it was empty, and whatever slots did."""
    seen = Seen(meta_pb2.TOPIC_TYPE_FIFO)
    seen.begin(slots_at=MADE_AT + 1)
    seen.tell(queue(begin, later) if later else queue(begin), slots(3, first=1))
    assert seen.history.changed_ms(seen.topic) == expected


@pytest.mark.parametrize(
    ("slots_at", "changes"),
    [(MADE_AT + 1, ()), (1, (queue((1, 1, 0)),)), (1, (queue((0, 1, 0), (1, 1, 0)),))],
)
def test_a_young_broker_looks_where_it_cannot_know(
    slots_at: int, changes: tuple[meta_pb2.Change, ...]
) -> None:
    """Slots that are younger than the topic, and moved queues, may have changed a moment ago."""
    seen = Seen()
    seen.begin(*changes, slots_at=slots_at)
    is_known = len(changes) == 1 and len(changes[0].queue_override.epochs) == 2
    assert seen.remembers() == (BEGIN_MS, [1] if is_known else ALL)
    seen.now_ms += WINDOW_MS + 1
    assert seen.remembers() == (0, [1])


def test_a_snapshot_after_a_gap_hides_owners() -> None:
    """A slot whose row was written anew may have had any owner in between, if only for a while."""
    seen = Seen()
    seen.begin()
    seen.begin()
    assert seen.remembers() == (0, [1])
    seen.now_ms += 1
    seen.begin(slots_at=MADE_AT + 60)
    assert seen.remembers() == (seen.now_ms, ALL)


def test_the_first_owner_of_a_slot_is_no_change() -> None:
    """A new cluster gives its slots to raft groups; nothing was stored before."""
    seen = Seen()
    seen.begin(snapshot=False)
    assert seen.remembers() == (0, [1])
