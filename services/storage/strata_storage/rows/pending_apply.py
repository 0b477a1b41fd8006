"""Apply of messages that wait: pending parts of APPEND, RESOLVE and RETRACT (rules 1, 26).

A message that waits has a pending row, by due time, and a pin, by name; it takes no offset and is
in no queue. The leader decided what becomes of it; apply finds it by its pin and asserts that it
still waits and that offsets follow each other.

Invariant: every pending row has a pin that says when it is due, and every pin that is PENDING has
that row. Both are written together.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from typing import NamedTuple

from strata_mq.commands import (
    AppendCommand,
    DropKind,
    EndedAs,
    PartResolution,
    ResolveAction,
    ResolveCommand,
    ResolveItem,
    RetractCommand,
    StoredPosition,
    TrimCommand,
)
from strata_mq.layout import (
    ORDINAL_OF_ALL,
    BatchView,
    CqRow,
    PartKind,
    PartView,
    PendingColumns,
    PendingKey,
    PendingRef,
    PendingRow,
    PinRow,
    PinState,
    QueueRow,
    day_of,
    encode_pending_pins,
    encode_pending_run,
)
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows
from strata_storage.base.errors import ApplyError
from strata_storage.rows.append_rows import kept_part_runs, kept_runs
from strata_storage.rows.bound import PendingBound
from strata_storage.rows.consume_queues import ConsumeQueues
from strata_storage.rows.placed_rows import pin_of_placed, write_placed
from strata_storage.rows.queue_states import QueueStates

# Stands for the pin of a message that the batch, not written yet, placed or dropped.
_GONE = PinRow.placed(PartKind.DELAYED, 0, 0, 0).encode()

QueueKey = tuple[int, int]
"""(topic id, queue)."""

# No duration is as long: the beginning of November 2004.
_EARLIEST_TIME_MS = 1 << 40


class StoredEntry(NamedTuple):
    """An entry that stores messages.

    Attributes:
        raft_index: of the entry.
        command: its APPEND.
        view: its batch.
        lost: ordinals of messages that a repair gave up.
    """

    raft_index: int
    command: AppendCommand
    view: BatchView
    lost: frozenset[int]


class PendingApply:
    """Writes the rows of one raft group's messages that wait.

    Args:
        rows: of the raft group.
        queues, consume_queues: what apply keeps in memory of them.
        dropped: (what, id) of what was dropped.

    Attributes:
        bound: where the rows of what waits begin.
    """

    __slots__ = (
        "_became",
        "_consume_queues",
        "_dropped",
        "_pins",
        "_queues",
        "_rows",
        "_waiting",
        "bound",
    )

    def __init__(
        self,
        rows: GroupRows,
        queues: QueueStates,
        consume_queues: ConsumeQueues,
        *,
        dropped: Container[tuple[int, int]],
    ) -> None:
        self._rows = rows
        self._queues = queues
        self._consume_queues = consume_queues
        self._dropped = dropped
        # Written by entries of the batch that is not in the store yet.
        self._pins: dict[PendingRef, bytes] = {}
        self._waiting: dict[PendingKey, bytes] = {}
        self._became: list[tuple[PendingKey, PartKind]] = []
        self.bound = PendingBound(rows.pending)

    def written(self) -> Sequence[tuple[PendingKey, PartKind]]:
        """Take in that the batch is in the store; return what became pending by it."""
        became, self._became = self._became, []
        self._pins.clear()
        self._waiting.clear()
        self.bound.written()
        return became

    def forget(self) -> None:
        """Take in that the batch is not written."""
        self._became.clear()
        self._pins.clear()
        self._waiting.clear()
        self.bound.reset()

    # Storing ------------------------------------------------------------------------------------

    def store(
        self, batch: RowBatch, entry: StoredEntry, part: PartView, resolution: PartResolution
    ) -> None:
        """Write the rows of a part whose messages wait."""
        for first, count in kept_part_runs(part, resolution, entry.lost):
            self._store_run(batch, entry, part, first, count)
        for ordinal in entry.lost:
            if part.first <= ordinal < part.first + part.count:
                ref = PendingRef(entry.raft_index, ordinal)
                self._rows.pins.put(batch, ref, PinRow.lost())

    def lose(self, batch: RowBatch, index: int) -> None:
        """Write that whatever an entry stored to wait is given up: nothing of it was saved."""
        self._rows.pins.put(batch, PendingRef(index, ORDINAL_OF_ALL), PinRow.lost())

    def _store_run(
        self, batch: RowBatch, entry: StoredEntry, part: PartView, first: int, count: int
    ) -> None:
        kind, index = part.key.kind, entry.raft_index
        due_times = _due_times(entry, kind, first, count)
        columns = _columns(entry, first, count)
        values = encode_pending_run(part.key, entry.command.store_time_ms, columns)
        like = PinRow.pending(kind, part.key.topic_id, 0, moved=bool(entry.lost))
        pins = encode_pending_pins(like, due_times)
        for ordinal, (due_ms, value, pin) in enumerate(
            zip(due_times, values, pins, strict=True), first
        ):
            self._put(batch, PendingKey(due_ms, index, ordinal), kind, value, pin)
        write_pending_ids(self._rows, batch, entry, part.key.topic_id, first, count)

    def _put(
        self, batch: RowBatch, key: PendingKey, kind: PartKind, value: bytes, pin: bytes
    ) -> None:
        ref = key.ref
        self._became.append((key, kind))
        self.bound.put(key)
        self._waiting[key] = value
        self._pins[ref] = pin
        self._rows.pending.put_encoded(batch, key, value)
        self._rows.pins.put_encoded(batch, ref, pin)

    # Resolving ----------------------------------------------------------------------------------

    def resolve(self, batch: RowBatch, index: int, command: ResolveCommand) -> Collection[QueueKey]:
        """Write the rows of a RESOLVE; return the queues that have new messages.

        Raises:
            ApplyError: a message does not wait, or an offset is not its queue's next one.
        """
        placed: list[ResolveItem] = []
        queues: dict[QueueKey, QueueRow] = {}
        for item in command.items:
            ref, pin = item.key.ref, self._find(index, item)
            # Without a pin a row is there if a trim missed it: the message was being put off then.
            due_ms = item.key.due_ms if pin is None else pin.due_ms
            self.bound.removed()
            self._rows.pending.delete(batch, PendingKey(due_ms, *ref))
            if item.action is ResolveAction.DELIVER and not self._is_dropped(item.topic_id):
                self._advance(queues, index, item, command.group_time_ms)
                if pin is not None:
                    # The pin is written with the other rows.
                    self._pins[ref] = _GONE
                    placed.append(self._corrected(index, item, pin) if pin.moved else item)
            elif item.action is ResolveAction.RESCHEDULE and pin is not None:
                row = self._row(index, ref, pin)._replace(checks=item.checks)
                later = pin._replace(due_or_offset=item.offset_or_due)
                key = PendingKey(item.offset_or_due, *ref)
                self._put(batch, key, row.kind, row.encode(), later.encode())
            elif pin is not None:
                self._pins[ref] = _GONE
                self._rows.pins.delete(batch, ref)
                if item.ended_as and item.action is ResolveAction.DISCARD:
                    day = day_of(command.group_time_ms)
                    self._rows.ended.put(batch, day, ref, item.ended_as, pin.topic_id)
        for run in write_placed(self._rows, batch, placed, command.group_time_ms, index):
            self._consume_queues.added(*run)
        for (topic_id, queue), state in queues.items():
            self._queues.put(batch, topic_id, queue, state)
        return queues.keys()

    def _find(self, index: int, item: ResolveItem) -> PinRow | None:
        """Return the pin of a message that waits; None: it is gone, by a repair or a drop.

        Its due time holds, not the item's: a repair may have lost an entry that put it off.

        Raises:
            ApplyError: it does not wait.
        """
        ref = item.key.ref
        value = self._pins.get(ref)
        pin = self._rows.pins.get(ref) if value is None else PinRow.decode(value)
        if pin is None or pin.state is not PinState.PENDING:
            topic_id = item.topic_id if item.row is None else item.row.topic_id
            if self._is_dropped(topic_id) or self._rows.pins.is_lost(ref):
                return None
            raise ApplyError(f"entry {index}: message {ref} does not wait")
        return pin

    def _corrected(self, index: int, item: ResolveItem, pin: PinRow) -> ResolveItem:
        """Return a PLACE item with the place that its message has in a repaired entry."""
        row = self._row(index, item.key.ref, pin)
        assert item.row is not None, "a PLACE item carries its pending row"
        return item._replace(row=item.row._replace(message_at=row.message_at))

    def _row(self, index: int, ref: PendingRef, pin: PinRow) -> PendingRow:
        key = PendingKey(pin.due_ms, *ref)
        value = self._waiting.get(key)
        row = self._rows.pending.get(key) if value is None else PendingRow.decode(value)
        if row is None:
            raise ApplyError(f"entry {index}: {key} has a pin and no row")
        return row

    def _advance(
        self, queues: dict[QueueKey, QueueRow], index: int, item: ResolveItem, now_ms: int
    ) -> None:
        """Take in that an offset is given; a message that is gone leaves it empty."""
        key = item.topic_id, item.queue
        state = queues.get(key) or self._queues.get(*key) or QueueRow(0, 0, 0, 0)
        if item.offset_or_due != state.next_offset:
            raise ApplyError(
                f"entry {index}: topic {item.topic_id} queue {item.queue} goes on at "
                f"{state.next_offset}, the entry says {item.offset_or_due}"
            )
        queues[key] = state._replace(next_offset=state.next_offset + 1, last_store_time_ms=now_ms)

    def _is_dropped(self, topic_id: int) -> bool:
        return (DropKind.TOPIC, topic_id) in self._dropped

    # Retracting and trimming; they look at rows, so the batch is empty before them --------------

    def retract(self, batch: RowBatch, index: int, command: RetractCommand) -> None:
        """Take stored messages out of their queues; their offsets stay and hold nothing.

        Raises:
            ApplyError: an offset holds nothing.
        """
        runs: dict[tuple[int, int, int], tuple[CqRow, set[int]]] = {}
        day = day_of(command.group_time_ms)
        for position in command.positions:
            if self._is_trimmed(position):
                continue
            topic_id, queue, offset = position
            pinned = pin_of_placed(self._rows, topic_id, queue, offset)
            self._rows.retracted.put(batch, topic_id, queue, offset, day=day, pinned=pinned)
            if pinned is not None:
                # The offset holds nothing now: its pin goes with the next trim.
                self._rows.ended.put(batch, day, pinned[0], EndedAs.RECALLED, topic_id)
            found = self._consume_queues.covering(topic_id, queue, offset)
            if found is not None:
                base, row = found
                _, ordinals = runs.setdefault((topic_id, queue, base), (row, set()))
                ordinals.add(offset - base)
            elif offset >= self._rows.tier.local.get(topic_id, queue):
                # Else rows were made again from an object that was written without it.
                raise ApplyError(f"entry {index}: {position} holds nothing")
        for (topic_id, queue, base), (row, ordinals) in runs.items():
            pieces = [
                (base + first, row.part(first, count))
                for first, count in kept_runs(0, row.count, frozenset(ordinals))
            ]
            self._consume_queues.replace(batch, topic_id, queue, base, pieces)

    def _is_trimmed(self, position: StoredPosition) -> bool:
        state = self._queues.get(position.topic_id, position.queue)
        return state is None or position.offset < state.min_offset

    def trim(self, batch: RowBatch, command: TrimCommand) -> None:
        """Remove pins of messages that are trimmed, and what waits of dropped topics."""
        for run in command.pins:
            self._rows.pins.delete_run(batch, run)
        for key in command.pending:
            self.bound.removed()
            self._rows.pending.delete(batch, key)


def _columns(entry: StoredEntry, first: int, count: int) -> Iterator[PendingColumns]:
    """Iterate what pending rows say of `count` messages from ordinal `first` on."""
    view = entry.view
    keys: dict[int, list[int]] = {}
    for ordinal, key_hash in view.key_hashes(first, count):
        keys.setdefault(ordinal, []).append(key_hash)
    ordinals = range(first, first + count)
    return zip(
        [entry.command.batch_at + view.message_at(ordinal) for ordinal in ordinals],
        view.lengths(first, count),
        view.checksums(first, count),
        view.tag_hashes(first, count),
        view.group_hashes(first, count),
        view.message_ids(first, count),
        [keys.get(ordinal, ()) for ordinal in ordinals],
        strict=True,
    )


def write_pending_ids(
    rows: GroupRows, batch: RowBatch, entry: StoredEntry, topic_id: int, first: int, count: int
) -> None:
    """Write the id rows of messages that were stored to wait."""
    rows.ids.put_pending_run(
        batch,
        day_of(entry.command.store_time_ms),
        topic_id,
        entry.view.message_ids(first, count),
        PendingRef(entry.raft_index, first),
    )


def _due_times(entry: StoredEntry, kind: PartKind, first: int, count: int) -> Sequence[int]:
    """Return when messages of a part are due, in group time.

    A half says how long after it was stored it is first asked about: whoever sends it may have a
    clock that is wrong (rule 4). One that says a time of day was stored by an earlier version.
    """
    due_times = entry.view.due_times(first, count)
    if kind is not PartKind.HALF:
        return due_times
    stored_ms = entry.command.store_time_ms
    return [due if due >= _EARLIEST_TIME_MS else stored_ms + due for due in due_times]
