"""Half messages: EndTransaction, and the checks that ask a producer what became of one.

A half is committed, rolled back or given up once; repeats are answered as the first one was. One
that nobody ends is looked at when it is due: a producer of its topic, wherever it is connected, is
asked, so often and in such intervals as the options say. After that any broker is told that the
checks are used up, so that it names the dead-letter topic and gives the message up. One that could
not be checked so often is given up likewise once it is too old: what waits keeps the log.

A half is put off before its check is sent; the check counts once a broker reports that it gave it
to a producer, or once a broker of an earlier version, which reports nothing, has it. So a half is
given up only after it was checked so often: if the leader ends in between, it is checked once more.

How a half ended that took no offset here (rolled back, or forwarded to another raft group) is kept
for a day at least, so that a repeat is told the same under whichever leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind
from strata_mq.layout import PartKind, PendingRef, PendingRow
from strata_runtime.clock import Clock
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.base.watchers import TransactionCheck
from strata_storage.leading.pending.check_routes import CheckRoutes, CheckWay, SentCheck
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.resolver import (
    DELIVERING,
    Decision,
    End,
    Ended,
    Place,
    Resolver,
    Target,
    Waiting,
)
from strata_storage.leading.pending.retry_slots import RetrySlots
from strata_storage.leading.proposer import Proposer
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

# Checks given to brokers before other tasks get their turn: there may be hundreds of brokers.
_SENT_PER_TURN = 50


class Check(NamedTuple):
    """A check that was decided.

    Attributes:
        decision: puts the half off until the next one; does not count this one.
        number: of the check, from 1.
        exhausted: there will be no other.
        is_too_old: there were not as many as there may be.
        is_guess: whether no broker knows a producer of the topic.
    """

    decision: Decision
    number: int
    exhausted: bool
    is_too_old: bool = False
    is_guess: bool = False


class HalfEnd(NamedTuple):
    """How a producer ends a half: it is committed, or else rolled back.

    `message_id` (17 bytes) names it if `name` is None.
    """

    name: PendingRef | None
    message_id: bytes
    topic_id: int
    is_commit: bool


class GroupTransactions:
    """Serves EndTransaction and decides checks for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        resolver: Resolver,
        *,
        reader: MessageReader,
        routes: CheckRoutes,
        clock: Clock,
        options: PendingOptions,
        instruments: PendingInstruments,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._resolver = resolver
        self._reader = reader
        self._routes = routes
        self._clock = clock
        self._options = options
        self._checks_total = instruments.checks
        self._uncheckable = RetrySlots(options.uncheckable_max)
        # Checks decided whose message is not with a broker yet.
        self.checks_in_flight = 0

    # EndTransaction -----------------------------------------------------------------------------

    async def commit(self, name: PendingRef | Place, topic_id: int) -> Place:
        """Deliver a half; return where it is.

        Raises:
            Refused: OUTCOME_INVALID_HANDLE, no such half or it ended otherwise; or not now.
        """
        found = self._find(name)
        if not isinstance(found, Waiting):
            place = (await self._ended(found, topic_id)).place
            if place is None or place.topic_id != topic_id:
                raise _invalid("the message was not committed")
            return place
        self._check_half(found, topic_id)
        elsewhere = Place(topic_id, 0, 0)
        if found.row.checks == DELIVERING:
            await self._resolver.settled()
            return elsewhere
        decision = self._commit(found)
        await decision.wait()
        return decision.place or elsewhere

    def _commit(self, found: Waiting) -> Decision:
        target = target_of(found.row)
        if self._resolver.can_place(target):
            return self._resolver.deliver(found, target, End.COMMITTED, for_call=True)
        # Its queues are elsewhere: decided now, brought there by the timer.
        now_ms = self._proposer.now_ms()
        return self._resolver.reschedule(found, now_ms, DELIVERING, for_call=True)

    async def roll_back(self, name: PendingRef | Place, topic_id: int) -> None:
        """Drop a half.

        Raises:
            Refused: as `commit`.
        """
        found = self._find(name)
        if not isinstance(found, Waiting):
            if (await self._ended(found, topic_id)).end is not End.ROLLED_BACK:
                raise _invalid("the message was not rolled back")
            return
        self._check_open(found, topic_id)
        await self._resolver.discard(found, End.ROLLED_BACK, for_call=True).wait()

    async def give_up(
        self, name: PendingRef | Place, topic_id: int, dead_letter_topic_id: int
    ) -> Place:
        """Move a half to a dead-letter topic, in the queue of this raft group (rule 26).

        Raises:
            Refused: as `commit`; OUTCOME_INVALID, there is no such dead-letter topic.
        """
        dropped = (DropKind.TOPIC, dead_letter_topic_id) in self._machine.dropped
        if not dead_letter_topic_id or dropped:
            raise Refused(pb.OUTCOME_INVALID, "a dead-letter topic must be named")
        found = self._find(name)
        if not isinstance(found, Waiting):
            place = (await self._ended(found, topic_id)).place
            if place is None or place.topic_id != dead_letter_topic_id:
                raise _invalid("the message was not given up")
            return place
        self._check_open(found, topic_id)
        queue = self._machine.raft_group
        target = Target(dead_letter_topic_id, queue, 0, 0, fixed=True)
        decision = self._resolver.deliver(found, target, End.GIVEN_UP, for_call=True)
        await decision.wait()
        return decision.place or Place(dead_letter_topic_id, queue, 0)

    async def end_all(self, halves: Sequence[HalfEnd]) -> list[Place | Refused | None]:
        """End halves; those that still wait are decided in one turn, so they share an entry.

        Returns:
            For each, where it is (None: rolled back), or what `commit` or `roll_back` raised;
            OUTCOME_OVERLOADED for one whose rows cannot be read.
        """
        now_ms = self._proposer.now_ms()
        begun = [self._begin(half, now_ms) for half in halves]
        return [
            each if isinstance(each, Refused) else await self._finish(half, each)
            for half, each in zip(halves, begun, strict=True)
        ]

    def _begin(self, half: HalfEnd, now_ms: int) -> Decision | PendingRef | Place | Refused:
        """Decide about a half that waits; return the name of any other one, or why not."""
        try:
            name = half.name or self._resolver.name_of(half.topic_id, half.message_id, now_ms)
            found = self._find(name)
            if not isinstance(found, Waiting) or found.row.checks == DELIVERING:
                return name
            self._check_half(found, half.topic_id)
            if half.is_commit:
                return self._commit(found)
            return self._resolver.discard(found, End.ROLLED_BACK, for_call=True)
        except Refused as refused:
            return refused
        except StateError as error:
            return _unreadable(error)

    async def _finish(
        self, half: HalfEnd, begun: Decision | PendingRef | Place
    ) -> Place | Refused | None:
        try:
            if not isinstance(begun, Decision):
                if half.is_commit:
                    return await self.commit(begun, half.topic_id)
                await self.roll_back(begun, half.topic_id)
                return None
            await begun.wait()
            return begun.place or (Place(half.topic_id, 0, 0) if half.is_commit else None)
        except Refused as refused:
            return refused
        except StateError as error:
            return _unreadable(error)

    def _find(self, name: PendingRef | Place) -> Waiting | Decision | Ended | None:
        return Ended(name) if isinstance(name, Place) else self._resolver.find(name)

    async def _ended(self, found: Decision | Ended | None, topic_id: int) -> Ended:
        """Return how a message ended, when that is committed."""
        if isinstance(found, Decision):
            if found.before.row.topic_id != topic_id:
                raise _invalid("the message is of another topic")
            await found.wait()
            return Ended(found.place, found.end)
        if found is None:
            raise _invalid("no such message waits here")
        return found

    def _check_half(self, waiting: Waiting, topic_id: int) -> None:
        row = waiting.row
        if (DropKind.TOPIC, topic_id) in self._machine.dropped:
            raise _invalid("the topic was dropped")
        if row.kind is not PartKind.HALF or row.topic_id != topic_id:
            raise _invalid("no half message of this topic")

    def _check_open(self, waiting: Waiting, topic_id: int) -> None:
        self._check_half(waiting, topic_id)
        if waiting.row.checks == DELIVERING:
            raise _invalid("the message is committed")

    # Checks -------------------------------------------------------------------------------------

    def due_check(
        self, waiting: Waiting, now_ms: int, ways: dict[int | None, CheckWay]
    ) -> Check | None:
        """Decide about a half that is due; return the check to send once that is committed.

        Args:
            waiting: the half.
            now_ms: group time.
            ways: what is known in this turn of the event loop, by topic; it is added to.

        Raises:
            Refused: OUTCOME_OVERLOADED.
        """
        options, row = self._options, waiting.row
        interval_ms = options.transaction_check_interval_ms
        # By group time, which no clock of one node makes jump (rule 4).
        is_too_old = now_ms - row.store_time_ms >= options.max_transaction_age_ms
        exhausted = is_too_old or row.checks >= options.max_transaction_checks
        topic_id = None if exhausted else row.topic_id
        way = ways.get(topic_id)
        if way is None:
            way = ways[topic_id] = self._routes.way(topic_id, self._clock.monotonic_s())
        if self.checks_in_flight >= options.checks_in_flight_max:
            next_ms = now_ms + options.retry_ms
        elif way is CheckWay.ASK:
            decision = self._resolver.reschedule(waiting, now_ms + interval_ms, row.checks)
            self.checks_in_flight += 1
            number = row.checks if exhausted else row.checks + 1
            return Check(decision, number, exhausted, is_too_old)
        else:
            next_ms = self._uncheckable.next(now_ms, interval_ms)
            if way is CheckWay.GUESS:
                decision = self._resolver.reschedule(waiting, next_ms, row.checks)
                self.checks_in_flight += 1
                return Check(decision, row.checks + 1, exhausted=False, is_guess=True)
            self._checks_total.add(1, {"result": "no_producer"})
        # Nobody was asked: that does not count.
        self._resolver.reschedule(waiting, next_ms, row.checks)
        return None

    async def send(self, checks: Sequence[Check]) -> None:
        """Give checks to brokers; those that none takes follow in an interval."""
        try:
            held = [check for check in checks if await _holds(check.decision)]
            # Large halves that come due together are not all in memory together.
            for part in _parts(held, self._options.check_read_bytes):
                await self._send(part)
        finally:
            self.checks_in_flight -= len(checks)

    async def _send(self, checks: Sequence[Check]) -> None:
        halves = [check.decision.before for check in checks]
        try:
            messages = await self._reader.read(
                [
                    Location(key.raft_index, row.message_at, row.length, row.checksum)
                    for key, row in halves
                ]
            )
        except (Refused, StateError):
            # Too many reads wait, or rows cannot be read; the next check follows.
            self._checks_total.add(len(checks), {"result": "unreadable"})
            return
        for number, (check, half, message) in enumerate(
            zip(checks, halves, messages, strict=True), 1
        ):
            if number % _SENT_PER_TURN == 0:
                await asyncio.sleep(0)
            result = "unreadable" if message is None else self._send_one(check, half, message)
            self._checks_total.add(1, {"result": result})

    def given(self, name: PendingRef, number: int) -> None:
        """Count a check that a producer has, unless the half ended or changed meanwhile.

        Args:
            name: of the half.
            number: of the check, from 1.

        Raises:
            Refused: OUTCOME_OVERLOADED.
            StateError: rows cannot be read.
        """
        waiting = self._resolver.find(name)
        if (
            isinstance(waiting, Waiting)
            and waiting.row.kind is PartKind.HALF
            and waiting.row.checks == number - 1
            and number <= self._options.max_transaction_checks
        ):
            self._resolver.reschedule(waiting, waiting.key.due_ms, number)

    def _send_one(self, check: Check, half: Waiting, message: bytes) -> str:
        key, row = half
        told = TransactionCheck(
            raft_group=self._machine.raft_group,
            raft_index=key.raft_index,
            ordinal=key.ordinal,
            topic_id=row.topic_id,
            number=check.number,
            exhausted=check.exhausted,
            store_time_ms=row.store_time_ms,
            message=message,
        )
        topic_id = None if check.exhausted else row.topic_id
        now_s, routes = self._clock.monotonic_s(), self._routes
        if check.is_guess:
            return "sent" if routes.guess(told, now_s) else "no_producer"
        if not check.exhausted and check.number > 1:
            # The broker that was asked before may know other producers of the topic only.
            routes.guess(told, now_s)
        sent = routes.send(told, topic_id, now_s)
        if sent is SentCheck.NOT:
            return "no_producer"
        if check.exhausted:
            return "too_old" if check.is_too_old else "exhausted"
        if sent is SentCheck.COUNTS:
            # Else the half is checked once more.
            with suppress(Refused, StateError):
                self.given(check.decision.ref, check.number)
        return "sent"


def target_of(row: PendingRow) -> Target:
    """Return where a message goes when it is delivered."""
    return Target(row.topic_id, row.queue, row.slot_base, row.queue_count)


def _parts(checks: Sequence[Check], size_bytes: int) -> Iterator[Sequence[Check]]:
    """Divide checks so that the messages of a part have so many bytes at most, or are one."""
    part: list[Check] = []
    part_bytes = 0
    for check in checks:
        length = check.decision.before.row.length
        if part and part_bytes + length > size_bytes:
            yield part
            part, part_bytes = [], 0
        part.append(check)
        part_bytes += length
    if part:
        yield part


async def _holds(decision: Decision) -> bool:
    try:
        await decision.wait()
    except Refused:
        # Nothing was written: the half is due as before, here or for the next leader.
        return False
    return True


def _invalid(reason: str) -> Refused:
    return Refused(pb.OUTCOME_INVALID_HANDLE, reason)


def _unreadable(error: StateError) -> Refused:
    """Return the refusal of a half whose rows may be read later (rule 40)."""
    return Refused(pb.OUTCOME_OVERLOADED, f"rows cannot be read: {error}")
