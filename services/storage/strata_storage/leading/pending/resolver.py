"""Decides the outcome of waiting messages, once and here: the RESOLVE entries of one leader.

A commit, a rollback, a recall and the due time race for a message; the first one to decide here
wins (rule 1). A later request waits until the winner's entry is committed and receives its outcome.
Decisions of one turn of the event loop share an entry.

Invariants:
- Queues and offsets are given at the moment of the proposal, so they rise with the log.
- A decision that cannot be proposed leaves no trace: a request that waits for it is refused.
- A message whose topic's DROP comes earlier in the log has no effect; apply sees to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import (
    EndedAs,
    ResolveCommand,
    ResolveItem,
    deliver,
    discard,
    encode_resolve,
    reschedule,
)
from strata_mq.layout import PendingKey, PendingRef, PendingRow, PinState, day_of
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.rows.machine import GroupMachine

DELIVERING = 0xFFFF
"""Number of checks of a message that is to be delivered, whatever comes: it waits for a queue."""

# Part of the decisions under way that calls leave to messages that are due, and these to calls.
_KEPT_PART = 4

# Messages of one entry that lie side by side and go to one queue together share a CQ row.
_RUN_MAX = 64


class End(StrEnum):
    """How a message stopped waiting; the value is the label in metrics."""

    DELIVERED = "delivered"
    COMMITTED = "committed"
    GIVEN_UP = "given_up"
    FORWARDED = "forwarded"
    ROLLED_BACK = "rolled_back"
    RECALLED = "recalled"
    TOPIC_DROPPED = "topic_dropped"


_ENDED_AS = {
    End.RECALLED: EndedAs.RECALLED,
    End.ROLLED_BACK: EndedAs.ROLLED_BACK,
    End.FORWARDED: EndedAs.FORWARDED,
}
_ENDS = {int(ended_as): end for end, ended_as in _ENDED_AS.items()}


class Place(NamedTuple):
    """Where a message is. Queue and offset are 0 when another raft group has it, or will."""

    topic_id: int
    queue: int
    offset: int


class Waiting(NamedTuple):
    """A message that waits, with what is in flight taken in."""

    key: PendingKey
    row: PendingRow


class Ended(NamedTuple):
    """A message that waits no more. `place` None: it is nowhere; `end` None: long ago."""

    place: Place | None
    end: End | None = None

    @property
    def place_here(self) -> Place | None:
        """Its place in this raft group; None: it has none here."""
        return None if self.end is End.FORWARDED else self.place


class Target(NamedTuple):
    """Queues that a message may be placed in; `queue` -1: any, `fixed`: no other one."""

    topic_id: int
    queue: int
    slot_base: int
    queue_count: int
    fixed: bool = False


class Decision:
    """Decision about one message; it holds once `wait` returns.

    Attributes:
        ref: the message's name.
        before: the message as it waited.
        after: as it waits from now on; None: it ended.
        end: how it ended; None: it waits on.
        target: where it may be placed.
        place: where it was, once that was proposed.
        refusal: why it was not proposed.
        is_unplaced: that is because it got no offset, which is about no other message.
        for_call: it was made for a call, not because a message is due.
        is_applied: its rows are in the store.
        previous: the one about the same message that was in flight when it was made.
        round: those that share its entry.
    """

    __slots__ = (
        "after",
        "before",
        "end",
        "for_call",
        "is_applied",
        "is_unplaced",
        "place",
        "previous",
        "ref",
        "refusal",
        "round",
        "target",
    )

    def __init__(
        self,
        ref: PendingRef,
        before: Waiting,
        round_: _Round,
        *,
        previous: Decision | None,
        end: End | None = None,
        target: Target | None = None,
        after: Waiting | None = None,
        for_call: bool = False,
    ) -> None:
        self.ref = ref
        self.before = before
        self.round = round_
        self.previous = previous
        self.end = end
        self.target = target
        self.after = after
        self.for_call = for_call
        self.place: Place | None = None
        self.refusal: Refused | None = None
        self.is_unplaced = False
        self.is_applied = False

    async def wait(self) -> None:
        """Wait until it is committed.

        Raises:
            Refused: it was not proposed, or leadership was lost.
        """
        await committed(self.round.done)
        if self.refusal is not None:
            raise self.refusal

    def item(self) -> ResolveItem:
        """Return it as a RESOLVE command says it."""
        key, row = self.before
        if self.place is not None:
            return deliver(key, row, *self.place)
        if self.after is not None:
            return reschedule(key, row.topic_id, self.after.key.due_ms, self.after.row.checks)
        ended_as = EndedAs.UNKNOWN if self.end is None else _ENDED_AS.get(self.end)
        return discard(key, row.topic_id, ended_as or EndedAs.UNKNOWN)


class _Round:
    """Decisions of one entry."""

    __slots__ = ("decisions", "done", "reserved")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # (topic, queue) -> offsets given.
        self.reserved: dict[tuple[int, int], int] = {}


class Resolver:
    """Decides for one leader in one term.

    Args:
        machine: applied rows.
        proposer: where entries go.
        appender: knows queues and their next offsets.
        options: limits.

    Attributes:
        on_resolved: told every decision whose rows are in the store, and the group time then.
        on_undone: told every decision that came to nothing.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        appender: GroupAppender,
        *,
        options: PendingOptions,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._appender = appender
        self._options = options
        self.on_resolved: Callable[[Decision, int], None] = lambda decision, now_ms: None
        self.on_undone: Callable[[Decision], None] = lambda decision: None
        # The last decision about every message that has one in flight.
        self._decided: dict[PendingRef, Decision] = {}
        self._in_flight = 0
        # Decisions for calls; at most so many are for calls, and for due messages.
        self._for_calls = 0
        self._most_of_one_kind = options.resolves_max - options.resolves_max // _KEPT_PART
        self._open: _Round | None = None

    def __len__(self) -> int:
        return self._in_flight

    @property
    def room(self) -> int:
        """How many decisions may still be made before others are applied."""
        return max(0, self._options.resolves_max - self._in_flight)

    @property
    def room_for_due(self) -> int:
        """As `room`, for messages that are due: however many there are, calls find some."""
        return max(0, min(self.room, self._most_of_one_kind - self._in_flight + self._for_calls))

    # Asking -------------------------------------------------------------------------------------

    def find(self, ref: PendingRef) -> Waiting | Decision | Ended | None:
        """Return how it stands with a message; None: nothing is known of it (any more).

        A `Decision` is one that ended it and is in flight.
        """
        decision = self._decided.get(ref)
        if decision is not None:
            return decision if decision.after is None else decision.after
        pin = self._machine.rows.pins.get(ref)
        if pin is None:
            return self._ended(ref)
        if pin.state is PinState.PLACED:
            return Ended(Place(pin.topic_id, pin.queue, pin.offset))
        if pin.state is not PinState.PENDING:
            return None
        return self._read(PendingKey(pin.due_ms, *ref))

    def _ended(self, ref: PendingRef) -> Ended | None:
        """Return how a message ended under whichever leader, as long as that is kept."""
        found = self._machine.rows.ended.get(day_of(self._proposer.now_ms()), ref)
        if found is None:
            return None
        end = _ENDS.get(found[0])
        return Ended(Place(found[1], 0, 0) if end is End.FORWARDED else None, end)

    def name_of(
        self, topic_id: int, message_id: bytes, now_ms: int | None = None
    ) -> PendingRef | Place:
        """Return what names the newest message of a topic with an id.

        Args:
            topic_id: of the topic.
            message_id: 17 bytes.
            now_ms: group time, if it is known.

        Raises:
            Refused: OUTCOME_INVALID_HANDLE, there is none.
        """
        ids = self._machine.rows.ids
        today = day_of(self._proposer.now_ms() if now_ms is None else now_ms)
        for day in chain((today,), self._earlier_days(today)):
            found = ids.get(day, topic_id, message_id)
            if isinstance(found, PendingRef):
                return found
            if found is not None:
                return Place(topic_id, *found)
        raise Refused(pb.OUTCOME_INVALID_HANDLE, "no message with this id")

    def _earlier_days(self, today: int) -> Iterator[int]:
        """Return the days before today that may have ids, the newest first; looked up when used."""
        first_day = self._machine.rows.ids.first_day()
        if first_day is not None:
            yield from range(today - 1, first_day - 1, -1)

    def find_due(self, key: PendingKey) -> Waiting | None:
        """Return a message by its row; None: it ended, or something about it is in flight."""
        return None if key.ref in self._decided else self._read(key)

    async def settled(self) -> None:
        """Wait until everything decided before the call is committed.

        Raises:
            Refused: leadership was lost.
        """
        self.flush()
        await self._proposer.settled()

    def _read(self, key: PendingKey) -> Waiting | None:
        row = self._machine.rows.pending.get(key)
        return None if row is None else Waiting(key, row)

    # Deciding -----------------------------------------------------------------------------------

    def deliver(
        self, waiting: Waiting, target: Target, end: End, *, for_call: bool = False
    ) -> Decision:
        """Give a message an offset in an open queue.

        Raises:
            Refused: OUTCOME_OVERLOADED.
        """
        return self._decide(waiting, end=end, target=target, for_call=for_call)

    def discard(self, waiting: Waiting, end: End, *, for_call: bool = False) -> Decision:
        """Let a message go.

        Raises:
            Refused: OUTCOME_OVERLOADED.
        """
        return self._decide(waiting, end=end, for_call=for_call)

    def reschedule(
        self, waiting: Waiting, due_ms: int, checks: int, *, for_call: bool = False
    ) -> Decision:
        """Let a message wait until `due_ms`.

        Raises:
            Refused: OUTCOME_OVERLOADED.
        """
        row = waiting.row._replace(checks=checks)
        after = Waiting(waiting.key._replace(due_ms=due_ms), row)
        return self._decide(waiting, after=after, for_call=for_call)

    def can_place(self, target: Target) -> bool:
        """Whether there is an open queue for a message now."""
        return target.fixed or self._appender.has_open_queue(*target[:4])

    def _decide(
        self,
        waiting: Waiting,
        *,
        end: End | None = None,
        target: Target | None = None,
        after: Waiting | None = None,
        for_call: bool = False,
    ) -> Decision:
        if not self.room or (for_call and self._for_calls >= self._most_of_one_kind):
            raise Refused(
                pb.OUTCOME_OVERLOADED,
                f"{self._in_flight} delayed or half messages are being resolved",
            )
        if self._open is not None and len(self._open.decisions) >= self._options.batch:
            self.flush()
        if self._open is None:
            self._open = _Round()
            asyncio.get_running_loop().call_soon(self.flush)
        ref = waiting.key.ref
        decision = Decision(
            ref,
            waiting,
            self._open,
            previous=self._decided.get(ref),
            end=end,
            target=target,
            after=after,
            for_call=for_call,
        )
        self._open.decisions.append(decision)
        self._decided[ref] = decision
        self._in_flight += 1
        self._for_calls += for_call
        return decision

    # Proposing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Propose what was decided. Refusals reach those who wait for the decisions."""
        round_, self._open = self._open, None
        if round_ is None:
            return
        self._place_all(round_)
        if not round_.decisions:
            round_.done.set_result(0)
            return
        command = ResolveCommand(
            self._proposer.now_ms(), [decision.item() for decision in round_.decisions]
        )
        try:
            entry = self._proposer.propose(
                (encode_resolve(command),), lambda: self._applied(round_)
            )
        except Refused as refused:
            self._undo(round_.decisions, refused)
            round_.done.set_result(0)
            return
        for (topic_id, queue), count in round_.reserved.items():
            self._appender.reserve(topic_id, queue, count)
        entry.add_done_callback(lambda entry: _pass_on(entry, round_.done))

    def _place_all(self, round_: _Round) -> None:
        """Give offsets; undo each decision for which that is not possible now.

        It may find no open queue any more, or rows that cannot be read: the others are proposed.
        """
        undone: list[tuple[Decision, str]] = []
        previous: Decision | None = None
        run = 0
        for decision in round_.decisions:
            target = decision.target
            if target is None:
                continue
            goes_along = (
                previous is not None and run < _RUN_MAX and _lies_behind(previous, decision)
            )
            try:
                chosen = _placed(previous).queue if goes_along else self._choose(target)
                if chosen is None:
                    undone.append((decision, "the topic's queues are being moved away"))
                    continue
                key = (target.topic_id, chosen)
                given = round_.reserved.get(key, 0)
                offset = self._appender.next_offset(*key) + given
            except StateError as error:
                undone.append((decision, f"rows of queues cannot be read: {error}"))
                continue
            run = run + 1 if goes_along else 1
            round_.reserved[key] = given + 1
            decision.place = Place(*key, offset)
            previous = decision
        for decision, reason in undone:
            decision.is_unplaced = True
            self._undo([decision], Refused(pb.OUTCOME_OVERLOADED, reason))
        if undone:
            round_.decisions = [each for each in round_.decisions if each.refusal is None]

    def _choose(self, target: Target) -> int | None:
        if target.fixed:
            return target.queue
        return self._appender.open_queue(*target[:4])

    def _applied(self, round_: _Round) -> None:
        for topic_id, queue in round_.reserved:
            self._appender.applied_reserved(topic_id, queue)
        self._not_in_flight(round_.decisions)
        now_ms = self._proposer.now_ms()
        for decision in round_.decisions:
            ref = decision.ref
            decision.previous = None
            decision.is_applied = True
            if self._decided.get(ref) is decision:
                del self._decided[ref]
            self.on_resolved(decision, now_ms)

    def _not_in_flight(self, decisions: Sequence[Decision]) -> None:
        self._in_flight -= len(decisions)
        self._for_calls -= sum(decision.for_call for decision in decisions)

    def _undo(self, decisions: list[Decision], refusal: Refused) -> None:
        self._not_in_flight(decisions)
        for decision in reversed(decisions):
            ref = decision.ref
            decision.refusal = refusal
            if decision.previous is None or decision.previous.is_applied:
                del self._decided[ref]
            else:
                self._decided[ref] = decision.previous
            self.on_undone(decision)


def _placed(decision: Decision | None) -> Place:
    assert decision is not None and decision.place is not None, "it was placed before"
    return decision.place


def _lies_behind(previous: Decision, decision: Decision) -> bool:
    """Whether a message lies right behind another one in its entry and may go where that goes."""
    before, after = previous.before, decision.before
    return (
        previous.target == decision.target
        and before.key.raft_index == after.key.raft_index
        and before.key.ordinal + 1 == after.key.ordinal
        and before.row.message_at + before.row.length == after.row.message_at
        and before.row.store_time_ms == after.row.store_time_ms
    )


def _pass_on(entry: asyncio.Future[int], done: asyncio.Future[int]) -> None:
    error = None if entry.cancelled() else entry.exception()
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
        # Nobody waits for what the timer decided; its failure is no news.
        done.exception()
    elif entry.cancelled():
        done.cancel()
    else:
        done.set_result(entry.result())
