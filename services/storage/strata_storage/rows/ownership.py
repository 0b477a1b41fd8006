"""Slots that a raft group owns (rule 17), and single queues that do not follow their slots.

Only OWN and OPEN commands change it, so it is the same on all replicas. A queue that was opened
here as a later epoch is owned whatever this state says (rule 18): its row says so.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from strata_mq.commands import DropKind, OwnCommand, QueuePlace, SlotGrant
from strata_mq.layout import QueueRow
from strata_mq.slots import FIRST_LITE_QUEUE, SLOT_COUNT, slot_of
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows

_CACHED_TOPICS_MAX = 10_000
_NONE: Mapping[int, bool] = {}
_NO_SLOTS: Set[int] = frozenset()


class Topic(NamedTuple):
    """The fields of a topic that storage needs: `strata.storage.v1.TopicRef`.

    Attributes:
        is_dead_letter: its queues have no slots: each raft group has the one with its own number.
    """

    topic_id: int
    slot_base: int
    queue_count: int
    is_dead_letter: bool = False


class OwnedSlots:
    """A set of slots, changed by OWN commands only."""

    __slots__ = ("_flags", "_queues")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._flags = bytearray(SLOT_COUNT)
        # (slot base, queue count) -> the owned ones of queues 0 .. queue count - 1.
        self._queues: OrderedDict[tuple[int, int], Sequence[int]] = OrderedDict()
        for first, count in runs:
            self._flags[first : first + count] = b"\x01" * count

    def __bool__(self) -> bool:
        return any(self._flags)

    def __contains__(self, slot: int) -> bool:
        return bool(self._flags[slot])

    def change(self, grants: Iterable[SlotGrant]) -> None:
        """Take in granted and revoked runs of slots."""
        for first, count, granted in grants:
            assert first + count <= SLOT_COUNT, f"slots {first}..{first + count} do not exist"
            self._flags[first : first + count] = (b"\x01" if granted else b"\x00") * count
        self._queues.clear()

    def runs(self) -> list[tuple[int, int]]:
        """Return the owned slots as (first, count) runs."""
        return slot_runs_of(slot for slot, owned in enumerate(self._flags) if owned)

    def owns(self, slot_base: int, queue: int) -> bool:
        """Whether a queue's slot is owned."""
        return bool(self._flags[slot_of(slot_base, queue)])

    def queues(self, slot_base: int, queue_count: int) -> Sequence[int]:
        """Return the owned queues of a topic, in order."""
        key = (slot_base, queue_count)
        queues = self._queues.get(key)
        if queues is None:
            queues = tuple(queue for queue in range(queue_count) if self.owns(slot_base, queue))
            self._queues[key] = queues
            if len(self._queues) > _CACHED_TOPICS_MAX:
                self._queues.popitem(last=False)
        return queues


class Ownership:
    """Slots and queues that a raft group owns as of the applied index.

    Args:
        rows: where it is kept.

    Attributes:
        slots: owned slots.
        revision: of the newest metadata on which slots were granted or revoked: nothing may be
            decided on older ones.
        closing: slots that this replica, as leader, is about to revoke: no queue of them that has
            no row yet may get one.
    """

    __slots__ = ("_places", "_rows", "closing", "revision", "slots")

    def __init__(self, rows: GroupRows) -> None:
        self._rows = rows
        self.slots = OwnedSlots(rows.owned.all())
        self.revision = rows.own_revision.get()
        self.closing: Set[int] = _NO_SLOTS
        # Topic -> queue -> whether it is here, of queues that do not follow their slots.
        self._places: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        for topic_id, queue, is_here in rows.queue_places.all():
            self._places[topic_id][queue] = is_here

    def change(
        self, batch: RowBatch, command: OwnCommand, dropped: Container[tuple[int, int]] = ()
    ) -> None:
        """Take in a command and write the rows; queues of dropped topics get none."""
        self.slots.change(command.slots)
        self._rows.owned.replace(batch, self.slots.runs())
        for topic_id, queue, place in command.queues:
            if (DropKind.TOPIC, topic_id) in dropped:
                continue
            if place is QueuePlace.BY_SLOT:
                self._places[topic_id].pop(queue, None)
                self._rows.queue_places.delete(batch, topic_id, queue)
            else:
                is_here = place is QueuePlace.HERE
                self._places[topic_id][queue] = is_here
                self._rows.queue_places.put(batch, topic_id, queue, is_here=is_here)
            if not self._places[topic_id]:
                del self._places[topic_id]
        self.revision = max(self.revision, command.revision)
        self._rows.own_revision.put(batch, self.revision)

    def opened(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Take in that a queue was opened here as a later epoch.

        It is the raft group's by its row, and asked for by its number, whoever has its slot: "any
        queue" would serve it before its older epochs are consumed (rule 18).
        """
        self._places[topic_id][queue] = False
        self._rows.queue_places.put(batch, topic_id, queue, is_here=False)

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Forget the queues of a topic."""
        if self._places.pop(topic_id, None):
            self._rows.queue_places.delete_topic(batch, topic_id)

    def places(self) -> Iterable[tuple[int, int, bool]]:
        """Return (topic, queue, whether it is here) of queues that do not follow their slots."""
        return [
            (topic_id, queue, is_here)
            for topic_id, queues in self._places.items()
            for queue, is_here in queues.items()
        ]

    def owns(self, topic: Topic, queue: int, row: QueueRow | None) -> bool:
        """Whether a queue is this raft group's.

        Args:
            topic: of the queue, no dead-letter topic.
            queue: its number.
            row: the queue's row; None: it has none.
        """
        if queue >= FIRST_LITE_QUEUE:
            # A lite topic is where its name was given a number, which made the row.
            return row is not None
        if row is not None and row.epoch > 0:
            return True
        if topic.topic_id in self._places:
            is_here = self._places[topic.topic_id].get(queue)
            if is_here is not None:
                return is_here
        slot = slot_of(topic.slot_base, queue)
        return slot in self.slots and (row is not None or slot not in self.closing)

    def is_plain(self, topic_id: int) -> bool:
        """Whether all queues of a topic follow their slots, and none is about to leave."""
        return not self.closing and topic_id not in self._places

    def places_of(self, topic_id: int) -> Mapping[int, bool]:
        """Return a topic's queues that do not follow their slots -> whether they are here."""
        return self._places.get(topic_id, _NONE)


def slot_runs_of(slots: Iterable[int]) -> list[tuple[int, int]]:
    """Return slots, rising, as (first, count) runs."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and sum(runs[-1]) == slot:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((slot, 1))
    return runs
