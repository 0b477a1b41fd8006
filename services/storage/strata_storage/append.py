"""What a leader decides about an append batch: queues, offsets, duplicates, repeats (rules 1, 23).

Everything is decided on speculative state: applied rows plus the leader's own appends in flight.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.batch import BatchError, BatchView, PartView
from strata_mq.commands import Duplicate, PartResolution, decode_resolution, encode_append
from strata_mq.rare_commands import DropKind
from strata_mq.rows import MoveRow, QueueRow, day_of
from strata_storage.config import EngineOptions
from strata_storage.dedupe import DedupeWindow
from strata_storage.errors import Refused
from strata_storage.machine import GroupMachine
from strata_storage.ownership import Topic
from strata_storage.proposer import Proposer, committed

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
_NO_MOVES: Mapping[int, MoveRow] = {}


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What came of a batch, once `future` is done.

    Attributes:
        sequence: the broker's number of the batch.
        store_time_ms: group time stamped into it.
        parts: one per part.
        future: gives the entry's index when it is committed; None: nothing had to be stored, or
            it was committed long ago.
        moves: where sealed queues went, by the number of the part that was refused for it.
    """

    sequence: int
    store_time_ms: int
    parts: Sequence[PartResolution]
    future: asyncio.Future[int] | None = None
    moves: Mapping[int, MoveRow] = field(default_factory=dict)

    async def wait(self) -> None:
        """Wait until the batch is committed.

        Raises:
            Refused: leadership was lost first.
        """
        if self.future is not None:
            await committed(self.future)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Messages of a part that take offsets: ids in order from `base_offset`."""

    topic_id: int
    queue: int
    base_offset: int
    ids: list[bytes]


class Appender:
    """Takes append batches for one leader in one term.

    Attributes:
        window: ids seen lately; until `adopt` those of this term only, and the id rows are asked
            for every id.
    """

    __slots__ = (
        "_brokers",
        "_has_history",
        "_in_flight",
        "_machine",
        "_next_offsets",
        "_options",
        "_proposer",
        "_rehashing",
        "_sealing",
        "_turns",
        "window",
    )

    def __init__(self, machine: GroupMachine, proposer: Proposer, options: EngineOptions) -> None:
        self._machine = machine
        self._proposer = proposer
        self._options = options
        self.window = DedupeWindow(options.dedupe)
        self._has_history = False
        # Next offsets of queues with appends in flight: (next offset, appends in flight).
        self._next_offsets: dict[tuple[int, int], tuple[int, int]] = {}
        self._in_flight: deque[list[_Stored]] = deque()
        self._sealing: set[tuple[int, int]] = set()
        # Queue -> smallest queue count by which message groups are put there now.
        self._rehashing: dict[tuple[int, int], int] = {}
        self._brokers: OrderedDict[int, AppendResult] = OrderedDict()
        # Topic -> how many parts asked for any queue: rotates over its queues.
        self._turns: OrderedDict[int, int] = OrderedDict()
        for boot_id, row in machine.rows.brokers.all():
            parts = decode_resolution(row.resolution)
            self._brokers[boot_id] = AppendResult(row.sequence, row.store_time_ms, parts)

    def submit(self, data: bytes, broker_boot_id: int, sequence: int) -> AppendResult:
        """Take a batch; its result holds once `AppendResult.wait` returns.

        Raises:
            Refused: OUTCOME_INVALID (not a batch, or an older number than the last), or what the
                driver refused. Nothing was changed.
        """
        last = self._brokers.get(broker_boot_id)
        if last is not None and sequence <= last.sequence:
            if sequence == last.sequence:
                return last
            raise Refused(pb.OUTCOME_INVALID, f"batch {sequence} comes after batch {last.sequence}")
        view = self._parse(data)
        now_ms = self._proposer.now_ms()
        stored: list[_Stored] = []
        parts = [self._resolve(view, part, now_ms, stored) for part in view.parts]
        moves = self._moves(view, parts)
        if all(part.outcome != pb.OUTCOME_OK for part in parts):
            return AppendResult(sequence, now_ms, parts, moves=moves)
        head = encode_append(now_ms, broker_boot_id, sequence, parts)
        future = self._proposer.propose((head, data), self._applied)
        self._machine.parsed(view)
        self._take_in(stored, now_ms)
        result = AppendResult(sequence, now_ms, parts, future, moves)
        self._remember(broker_boot_id, result)
        return result

    def adopt(self, history: DedupeWindow) -> None:
        """Take in the ids of earlier terms: a window is asked faster than rows."""
        history.add_all(self.window, self._proposer.now_ms())
        self.window = history
        self._has_history = True

    def next_offset(self, topic_id: int, queue: int) -> int:
        """Return a queue's next offset with everything in flight."""
        in_flight = self._next_offsets.get((topic_id, queue))
        if in_flight is not None:
            return in_flight[0]
        return (self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE).next_offset

    def reserve(self, topic_id: int, queue: int, count: int) -> None:
        """Take in that a command other than APPEND, just proposed, stores messages in a queue.

        The command was proposed with `applied_reserved` to be called when it is applied.
        """
        self._move(topic_id, queue, self.next_offset(topic_id, queue) + count)

    def applied_reserved(self, topic_id: int, queue: int) -> None:
        """Take in that a command named to `reserve` is applied."""
        self._arrived(topic_id, queue)

    def seal(self, topic_id: int, queue: int) -> int:
        """Take no more appends for a queue; return its end offset."""
        self._sealing.add((topic_id, queue))
        return self.next_offset(topic_id, queue)

    def opened(self, topic_id: int, queue: int) -> None:
        """Take appends for a queue again: it came back."""
        self._sealing.discard((topic_id, queue))

    def is_sealed(self, topic_id: int, queue: int) -> bool:
        """Whether a queue takes no appends, or soon will not."""
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        return row.sealed or (topic_id, queue) in self._sealing

    def hold(self, topic_id: int, queue: int, queue_count: int) -> bool:
        """Take no message groups that a smaller queue count puts into a queue, until `let_go`.

        Returns:
            False: they are held already.
        """
        if (topic_id, queue) in self._rehashing:
            return False
        self._rehashing[topic_id, queue] = queue_count
        return True

    def let_go(self, topic_id: int, queue: int) -> None:
        """Take what the queue's row lets in."""
        del self._rehashing[topic_id, queue]

    # Deciding -----------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> BatchView:
        try:
            view = BatchView(data, google_crc32c.value)
            if self._options.verify_bodies:
                view.check_messages()
        except BatchError as error:
            raise Refused(pb.OUTCOME_INVALID, f"append batch: {error}") from error
        return view

    def _resolve(
        self, view: BatchView, part: PartView, now_ms: int, stored: list[_Stored]
    ) -> PartResolution:
        topic_id = part.key.topic_id
        queue = self._choose_queue(part)
        if queue is None:
            return PartResolution(max(part.key.queue, 0), 0, pb.OUTCOME_WRONG_GROUP)
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        base_offset = self.next_offset(topic_id, queue)
        refusal = self._refusal(part, queue, row)
        if refusal != pb.OUTCOME_OK:
            return PartResolution(queue, base_offset, refusal)
        for earlier in stored:
            if earlier.topic_id == topic_id and earlier.queue == queue:
                base_offset = earlier.base_offset + len(earlier.ids)
        ids = view.message_ids(part.first, part.count)
        clean = len(set(ids)) == len(ids) and self.window.all_new(topic_id, ids)
        clean = clean and self._has_history
        if clean and not any(earlier.topic_id == topic_id for earlier in stored):
            stored.append(_Stored(topic_id, queue, base_offset, ids))
            return PartResolution(queue, base_offset)
        return self._resolve_duplicates(topic_id, queue, base_offset, ids, now_ms, stored)

    def _refusal(self, part: PartView, queue: int, row: QueueRow) -> pb.Outcome.ValueType:
        """Return why a queue that is here does not take a part; OK: it does."""
        key = (part.key.topic_id, queue)
        if row.sealed or key in self._sealing:
            return pb.OUTCOME_SEALED
        if part.key.queue < 0:
            # Not for message groups, whose queue the broker chooses.
            return pb.OUTCOME_OK
        if part.key.queue_count < row.queue_count:
            return pb.OUTCOME_REHASHED
        if part.key.queue_count < self._rehashing.get(key, 0):
            return pb.OUTCOME_SEALED
        return pb.OUTCOME_OK

    def _moves(self, view: BatchView, parts: Sequence[PartResolution]) -> Mapping[int, MoveRow]:
        moves = self._machine.moves
        if not moves:
            return _NO_MOVES
        return {
            number: moves[key]
            for number, (part, resolution) in enumerate(zip(view.parts, parts, strict=True))
            if resolution.outcome == pb.OUTCOME_SEALED
            and (key := (part.key.topic_id, resolution.queue)) in moves
        }

    def _choose_queue(self, part: PartView) -> int | None:
        """Return the queue of a part; None: it is not this raft group's."""
        topic_id, queue, slot_base, queue_count = part.key
        topic = Topic(topic_id, slot_base, queue_count)
        if (DropKind.TOPIC, topic_id) in self._machine.dropped:
            return None
        if queue >= 0:
            return queue if self._machine.owns_queue(topic, queue) else None
        queues = self._machine.queues_here(topic)
        if self._machine.moves or self._sealing:
            # A sealed queue is only chosen when there is no other: the answer says why.
            sealed = self._machine.moves.keys() | self._sealing
            queues = [q for q in queues if (topic_id, q) not in sealed] or queues
        if not queues:
            return None
        turn = self._turns.get(topic_id, -1) + 1
        self._turns[topic_id] = turn
        if len(self._turns) > self._options.queue_rows_max:
            self._turns.popitem(last=False)
        return queues[turn % len(queues)]

    def _resolve_duplicates(
        self,
        topic_id: int,
        queue: int,
        base_offset: int,
        ids: list[bytes],
        now_ms: int,
        stored: list[_Stored],
    ) -> PartResolution:
        """Resolve a part of which some ids may be known: one look-up per id that is."""
        fresh: dict[bytes, int] = {}
        duplicates = []
        for ordinal, message_id in enumerate(ids):
            first: tuple[int, int] | None = None
            if message_id in fresh:
                first = (queue, base_offset + fresh[message_id])
            elif not self._has_history or self.window.known(topic_id, message_id):
                first = self._position(topic_id, message_id, now_ms)
            first = first or _position_in(stored, topic_id, message_id)
            if first is None:
                fresh[message_id] = len(fresh)
            else:
                duplicates.append(Duplicate(ordinal, *first))
        if fresh:
            stored.append(_Stored(topic_id, queue, base_offset, list(fresh)))
        return PartResolution(queue, base_offset, pb.OUTCOME_OK, duplicates)

    def _position(self, topic_id: int, message_id: bytes, now_ms: int) -> tuple[int, int] | None:
        """Return where the first message with a known id is: in flight, or by its id row.

        One in flight needs no waiting: its entry is before the one that names it, so the second
        cannot be committed without the first.
        """
        for stored in reversed(self._in_flight):
            found = _position_in(stored, topic_id, message_id)
            if found is not None:
                return found
        ids = self._machine.rows.ids
        today = day_of(now_ms)
        return ids.get(today, topic_id, message_id) or ids.get(today - 1, topic_id, message_id)

    # Speculative state --------------------------------------------------------------------------

    def _take_in(self, stored: list[_Stored], now_ms: int) -> None:
        for run in stored:
            self._move(run.topic_id, run.queue, run.base_offset + len(run.ids))
            self.window.add(run.topic_id, run.ids, now_ms)
        self._in_flight.append(stored)

    def _move(self, topic_id: int, queue: int, next_offset: int) -> None:
        _, count = self._next_offsets.get((topic_id, queue), (0, 0))
        self._next_offsets[topic_id, queue] = (next_offset, count + 1)

    def _applied(self) -> None:
        for run in self._in_flight.popleft():
            self._arrived(run.topic_id, run.queue)

    def _arrived(self, topic_id: int, queue: int) -> None:
        key = (topic_id, queue)
        next_offset, count = self._next_offsets[key]
        if count == 1:
            # The applied row says the same now.
            del self._next_offsets[key]
        else:
            self._next_offsets[key] = (next_offset, count - 1)

    def _remember(self, broker_boot_id: int, result: AppendResult) -> None:
        self._brokers[broker_boot_id] = result
        self._brokers.move_to_end(broker_boot_id)
        if len(self._brokers) > self._options.brokers_max:
            self._brokers.popitem(last=False)


def _position_in(
    stored: Sequence[_Stored], topic_id: int, message_id: bytes
) -> tuple[int, int] | None:
    for run in stored:
        if run.topic_id == topic_id and message_id in run.ids:
            return run.queue, run.base_offset + run.ids.index(message_id)
    return None
