"""A leader's decision about an append batch: queues, offsets, duplicates, repeats (rules 1, 23).

Everything is decided on speculative state: applied rows plus the leader's own appends in flight.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, Duplicate, PartResolution, decode_resolution, encode_append
from strata_mq.layout import (
    NO_QUEUE,
    BatchError,
    BatchView,
    MessagePosition,
    MoveRow,
    PartView,
    PendingRef,
    QueueRow,
    all_made_between,
    day_of,
)
from strata_storage.base.config import EngineOptions
from strata_storage.base.dedupe import DedupeWindow
from strata_storage.base.errors import Refused
from strata_storage.leading.appends.in_flight import (
    InFlight,
    Place,
    Stored,
    StoredRuns,
    committed_index,
    duplicate_of,
)
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
_NO_MOVES: Mapping[int, MoveRow] = {}


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of a batch, once `future` is done.

    Attributes:
        sequence: the broker's number of the batch.
        store_time_ms: group time stamped into it.
        parts: one per part.
        future: gives the entry's index when it is committed; None: nothing had to be stored, or
            it was committed long ago.
        raft_index: of the entry that was committed long ago; 0: nothing had to be stored.
        moves: where sealed queues went, by the number of the part that was refused for it.
    """

    sequence: int
    store_time_ms: int
    parts: Sequence[PartResolution]
    future: asyncio.Future[int] | None = None
    raft_index: int = 0
    moves: Mapping[int, MoveRow] = field(default_factory=dict)

    async def wait(self) -> int:
        """Wait until the batch is committed; return the entry's index, which names what waits.

        Raises:
            Refused: leadership was lost first.
        """
        return self.raft_index if self.future is None else await committed(self.future)


class Sealing(NamedTuple):
    """A SEAL of this term: where the queue goes, and the proposal, if it is known."""

    destination: int = 0
    future: asyncio.Future[int] | None = None


class GroupAppender:
    """Takes append batches for one leader in one term.

    Attributes:
        window: ids seen lately; until `adopt` those of this term only. An id that may have been
            stored before the window begins is looked up in its row.
    """

    __slots__ = (
        "_brokers",
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
        self.window = DedupeWindow(options.dedupe, since_ms=machine.state.group_time_ms + 1)
        # Next offsets of queues with appends in flight: (next offset, appends in flight).
        self._next_offsets: dict[tuple[int, int], tuple[int, int]] = {}
        self._in_flight: deque[InFlight] = deque()
        # Queue -> its SEAL in flight, or applied in this term: where to, and its proposal.
        self._sealing: dict[tuple[int, int], Sealing] = {}
        # Queue -> smallest queue count by which message groups are put there now.
        self._rehashing: dict[tuple[int, int], int] = {}
        self._brokers: OrderedDict[int, AppendResult] = OrderedDict()
        # Topic -> how many parts asked for any queue: rotates over its queues.
        self._turns: OrderedDict[int, int] = OrderedDict()
        for boot_id, row in machine.rows.brokers.all():
            parts = decode_resolution(row.resolution)
            self._brokers[boot_id] = AppendResult(
                row.sequence, row.store_time_ms, parts, None, row.raft_index
            )

    def submit(
        self, data: bytes, broker_boot_id: int, sequence: int, *, may_repeat: bool = False
    ) -> AppendResult:
        """Take a batch; its result holds once `AppendResult.wait` returns.

        Args:
            data: the batch.
            broker_boot_id: who sends it; 0: nobody whose repeats are known by their number.
            sequence: the sender's number of it.
            may_repeat: look for every id in the rows of today and yesterday, not only in the
                window: the sender cannot know whether it sent the messages before. If all parts
                are refused, they name their messages that are stored here all the same; the caller
                makes sure that this is still the leader, and that these are committed.

        Raises:
            Refused: OUTCOME_INVALID (not a batch, or an older number than the last),
                OUTCOME_NOT_READY (the first message with an id, sent through another broker, is
                being committed) or what the driver refused. Nothing was changed.
        """
        last = self._brokers.get(broker_boot_id)
        if last is not None and sequence <= last.sequence:
            if sequence == last.sequence:
                return last
            raise Refused(pb.OUTCOME_INVALID, f"batch {sequence} comes after batch {last.sequence}")
        view = self._parse(data)
        now_ms = self._proposer.now_ms()
        stored = StoredRuns()
        parts = [self._resolve(view, part, now_ms, stored, may_repeat) for part in view.parts]
        moves = self._moves(view, parts)
        if all(part.outcome != pb.OUTCOME_OK for part in parts):
            if may_repeat:
                parts = [
                    self._with_known(view, *pair, now_ms)
                    for pair in zip(view.parts, parts, strict=True)
                ]
            return AppendResult(sequence, now_ms, parts, moves=moves)
        head = encode_append(now_ms, broker_boot_id, sequence, parts)
        future = self._proposer.propose((head, data), self._applied)
        self._machine.parsed.add(future, view)
        self._take_in(InFlight(future, stored), now_ms)
        result = AppendResult(sequence, now_ms, parts, future, moves=moves)
        if broker_boot_id:
            self._remember(broker_boot_id, result)
        return result

    def adopt(self, history: DedupeWindow) -> None:
        """Take in the ids of earlier terms: a window is asked faster than rows."""
        history.add_all(self.window, self._proposer.now_ms())
        self.window = history

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

    def open_queue(self, topic_id: int, queue: int, slot_base: int, queue_count: int) -> int | None:
        """Choose where a message goes that waited; None: no queue of its topic is open here.

        Args:
            topic_id: the topic.
            queue: where it was to go; another one if that is sealed or gone (rule 18); -1: any.
            slot_base: of the topic.
            queue_count: of the topic.
        """
        queues = self._open_queues(topic_id, queue, slot_base, queue_count)
        if len(queues) > 1:
            return self._rotate(topic_id, queues)
        return queues[0] if queues else None

    def has_open_queue(self, topic_id: int, queue: int, slot_base: int, queue_count: int) -> bool:
        """Whether `open_queue` would return a queue."""
        return bool(self._open_queues(topic_id, queue, slot_base, queue_count))

    def seal(self, topic_id: int, queue: int, sealing: Sealing | None = None) -> int:
        """Take no more appends for a queue, whose SEAL was just proposed; return its end offset."""
        self._sealing[topic_id, queue] = sealing or Sealing()
        return self.next_offset(topic_id, queue)

    def sealing(self, topic_id: int, queue: int) -> Sealing | None:
        """Return the SEAL of a queue that was proposed in this term; None: there is none."""
        return self._sealing.get((topic_id, queue))

    def opened(self, topic_id: int, queue: int) -> None:
        """Take appends for a queue again: it came back."""
        self._sealing.pop((topic_id, queue), None)

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
        self, view: BatchView, part: PartView, now_ms: int, stored: StoredRuns, may_repeat: bool
    ) -> PartResolution:
        """Decide about a part.

        Args:
            view: the batch.
            part: of it.
            now_ms: group time.
            stored: what the parts before store; what this one stores is added.
            may_repeat: see `submit`.
        """
        topic_id, kind = part.key.topic_id, part.key.kind
        queue = self._choose_queue(part)
        if queue is None:
            return PartResolution(max(part.key.queue, 0), 0, pb.OUTCOME_WRONG_GROUP, kind=kind)
        places, outcome = self._places(part, queue, stored)
        if outcome != pb.OUTCOME_OK:
            return PartResolution(queue, places[0], outcome, kind=kind)
        if kind:
            queue = NO_QUEUE
        ids = view.message_ids(part.first, part.count)
        run = Stored(topic_id, queue, places, ids)
        unique = set(ids)
        look_up = self._looks_up(ids, now_ms, may_repeat=may_repeat)
        clean = look_up is None and self.window.all_new(topic_id, ids) and len(unique) == len(ids)
        if clean and not stored.has_any(topic_id, unique):
            stored.add(run)
            return PartResolution(queue, places[0], pb.OUTCOME_OK, (), kind)
        duplicates = self._resolve_duplicates(run, now_ms, stored, look_up)
        return PartResolution(queue, places[0], pb.OUTCOME_OK, duplicates, kind)

    def _places(
        self, part: PartView, queue: int, stored: StoredRuns
    ) -> tuple[range, pb.Outcome.ValueType]:
        """Return a part's offsets, or its ordinals if it waits; and whether it may be stored.

        Args:
            part: of the batch.
            queue: where it goes.
            stored: what the parts before store.
        """
        key = (part.key.topic_id, queue)
        row = self._machine.queues.get(*key) or _EMPTY_QUEUE
        outcome = self._refusal(part, key, row)
        if part.key.kind:
            return range(part.first, part.first + part.count), outcome
        in_flight = self._next_offsets.get(key)
        base = row.next_offset if in_flight is None else in_flight[0]
        end = stored.end_of(*key) if outcome == pb.OUTCOME_OK else None
        base = base if end is None else end
        return range(base, base + part.count), outcome

    def _refusal(self, part: PartView, key: tuple[int, int], row: QueueRow) -> pb.Outcome.ValueType:
        """Return why a queue that is here, with its row, does not take a part; OK: it does."""
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
        topic_id, queue, slot_base, queue_count, kind = part.key
        topic = Topic(topic_id, slot_base, queue_count)
        if (DropKind.TOPIC, topic_id) in self._machine.dropped:
            return None
        if not queue_count:
            # A dead-letter topic has no slots (rule 26); this is a consumer without a lease.
            return queue if queue == self._machine.raft_group and not kind else None
        if queue >= 0:
            return queue if self._machine.owns_queue(topic, queue) else None
        queues = self._machine.queues_here(topic)
        # A sealed queue is only chosen when there is no other: the answer says why.
        queues = self._open(topic_id, queues) or queues
        if not queues:
            return None
        # Messages that wait are given a queue when they are placed.
        return queues[0] if kind else self._rotate(topic_id, queues)

    def _open_queues(
        self, topic_id: int, queue: int, slot_base: int, queue_count: int
    ) -> Sequence[int]:
        topic = Topic(topic_id, slot_base, queue_count)
        if queue >= 0 and self._machine.owns_queue(topic, queue):
            own = self._open(topic_id, (queue,))
            if own:
                return own
        return self._open(topic_id, self._machine.queues_here(topic))

    def _open(self, topic_id: int, queues: Sequence[int]) -> Sequence[int]:
        moves, sealing = self._machine.moves, self._sealing
        if not moves and not sealing:
            return queues
        return [
            queue
            for queue in queues
            if (topic_id, queue) not in moves and (topic_id, queue) not in sealing
        ]

    def _rotate(self, topic_id: int, queues: Sequence[int]) -> int:
        turn = self._turns.get(topic_id, -1) + 1
        self._turns[topic_id] = turn
        if len(self._turns) > self._options.queue_rows_max:
            self._turns.popitem(last=False)
        return queues[turn % len(queues)]

    def _looks_up(self, ids: list[bytes], now_ms: int, *, may_repeat: bool) -> int | None:
        """Return the oldest day in whose rows ids are looked up that the window does not know.

        None: in no rows. Either the window begins early enough, or the ids say that they were made
        after it began, so that none was stored before.
        """
        if may_repeat:
            return day_of(now_ms) - 1
        options, begin_ms = self._options.dedupe, self.window.since_ms
        if begin_ms <= now_ms - options.window_ms:
            return None
        error_ms = options.clock_error_ms
        if all_made_between(ids, begin_ms + error_ms, now_ms + error_ms):
            return None
        return day_of(now_ms - options.window_ms)

    def _resolve_duplicates(
        self, run: Stored, now_ms: int, stored: StoredRuns, look_up: int | None
    ) -> list[Duplicate]:
        """Resolve a part of which some ids may be known: one look-up per id that is.

        Args:
            run: the part as if all of it were new.
            now_ms: group time.
            stored: what the parts before store; what is new of this one is added.
            look_up: see `_looks_up`.
        """
        topic_id, queue = run.topic_id, run.queue
        fresh: dict[bytes, int] = {}
        duplicates = []
        for ordinal, message_id in enumerate(run.ids):
            first: Place | None = None
            if message_id in fresh:
                place = fresh[message_id]
                waits = queue == NO_QUEUE
                first = PendingRef(0, place) if waits else MessagePosition(queue, place)
            elif self.window.known(topic_id, message_id):
                first = self._find(topic_id, message_id, now_ms, day_of(now_ms) - 1)
            elif look_up is not None:
                first = self._find(topic_id, message_id, now_ms, look_up)
            first = first or stored.find(topic_id, message_id, 0)
            if first is None:
                # Offsets follow each other; the ordinal in the batch is what it is.
                at = ordinal if queue == NO_QUEUE else len(fresh)
                fresh[message_id] = run.places[at]
            else:
                duplicates.append(duplicate_of(ordinal, first))
        if fresh:
            stored.add(Stored(topic_id, queue, list(fresh.values()), list(fresh)))
        return duplicates

    def _with_known(
        self, view: BatchView, part: PartView, refused: PartResolution, now_ms: int
    ) -> PartResolution:
        """Return a refused part with its messages that are stored here.

        Raises:
            Refused: as `_find`.
        """
        oldest_day, topic_id = day_of(now_ms) - 1, part.key.topic_id
        firsts = [
            self._find(topic_id, message_id, now_ms, oldest_day)
            for message_id in view.message_ids(part.first, part.count)
        ]
        known = [duplicate_of(at, first) for at, first in enumerate(firsts) if first is not None]
        return replace(refused, duplicates=known)

    def _find(self, topic_id: int, message_id: bytes, now_ms: int, oldest_day: int) -> Place | None:
        """Return where the first message with a known id is: in flight, or by its id row.

        One in flight needs no waiting: its entry is before the one that names it, so the second
        cannot be committed without the first.

        Raises:
            Refused: OUTCOME_NOT_READY, it is in flight and its name is not known before commit.
        """
        for entry in reversed(self._in_flight):
            found = entry.runs.find(topic_id, message_id, committed_index(entry.future))
            if isinstance(found, PendingRef) and not found.raft_index:
                raise Refused(pb.OUTCOME_NOT_READY, "the first message with an id is in flight")
            if found is not None:
                return found
        ids = self._machine.rows.ids
        for day in range(day_of(now_ms), oldest_day - 1, -1):
            place = ids.get(day, topic_id, message_id)
            if place is not None:
                return place
        return None

    # Speculative state --------------------------------------------------------------------------

    def _take_in(self, entry: InFlight, now_ms: int) -> None:
        for run in entry.runs.all:
            if run.queue != NO_QUEUE:
                self._move(run.topic_id, run.queue, run.places[-1] + 1)
            self.window.add(run.topic_id, run.ids, now_ms)
        self._in_flight.append(entry)

    def _move(self, topic_id: int, queue: int, next_offset: int) -> None:
        _, count = self._next_offsets.get((topic_id, queue), (0, 0))
        self._next_offsets[topic_id, queue] = (next_offset, count + 1)

    def _applied(self) -> None:
        for run in self._in_flight.popleft().runs.all:
            if run.queue != NO_QUEUE:
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
