"""Delivers messages when they are due and has halves checked: the timer of one leader in one term.

It sleeps until the next due time or until something earlier becomes pending; a quiesced raft group
with waiting messages stays quiesced until then. It never delivers early: it goes by group time
(rule 4). Messages due together are delivered in batches, one entry each, in the order of due times.

Invariant: a pending message is in the window, in the rows beyond its bound, decided about
(`Resolver`), or on its way to another raft group; a message whose decision fails returns to the
window, one whose rows, or whose queue's, cannot be read after a while (`UnreadableKeys`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from strata_mq.commands import DropKind
from strata_mq.layout import PartKind, PendingKey
from strata_runtime.logs import get_logger
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.base.jobs import RunJob
from strata_storage.leading.pending.check_routes import CheckWay
from strata_storage.leading.pending.due_window import DueWindow
from strata_storage.leading.pending.forwards import Forward, Forwards
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.resolver import (
    DELIVERING,
    Decision,
    End,
    Resolver,
    Target,
    Waiting,
)
from strata_storage.leading.pending.transactions import Check, GroupTransactions, target_of
from strata_storage.leading.pending.unreadable_keys import UnreadableKeys
from strata_storage.leading.proposer import Proposer
from strata_storage.reads.counts import PendingCounts
from strata_storage.rows.machine import GroupMachine

# Group time may run faster than the clock that the timer sleeps by (rule 4): of a long wait a part
# is kept back, so that the last stretch is short and exact.
_LONG_WAIT_S = 1.0
_LONG_WAIT_SHARE = 0.999
_WAIT_MIN_S = 0.001

_RESULTS = {end: {"result": end.value} for end in End}


class Timers:
    """See the module docstring.

    Args:
        machine, proposer, resolver, transactions, forwards: of the leader.
        run_read: runs blocking reads.
        options: limits and times.
        instruments: counters.

    Attributes:
        counts: how many messages wait.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        resolver: Resolver,
        *,
        transactions: GroupTransactions,
        forwards: Forwards,
        run_read: RunJob,
        options: PendingOptions,
        instruments: PendingInstruments,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._resolver = resolver
        self._transactions = transactions
        self._forwards = forwards
        self._run_read = run_read
        self._options = options
        self._instruments = instruments
        self._window = DueWindow(machine.pending_bound, options.window)
        self._unreadable = UnreadableKeys(options.window, options.retry_ms)
        self.counts = PendingCounts(machine, run_read)
        self._wake = asyncio.Event()
        # Group time up to which the timer sleeps; None: until it is woken.
        self._sleeps_until_ms: int | None = None
        self._waits_for_room = False
        self._was_refused = False
        self._ended = False
        self._logger = get_logger("storage")
        resolver.on_resolved = self._resolved
        resolver.on_undone = self._undone
        forwards.on_returned = self._add

    def __len__(self) -> int:
        return len(self._window) + len(self._unreadable)

    def due(self) -> int:
        """Return how many messages are due and nothing was decided about, as far as is known."""
        return self._window.due(self._proposer.now_ms()) + len(self._unreadable)

    def overdue_ms(self) -> int:
        """Return for how long the first of these has been due; 0: there is none."""
        due_ms = _earlier(self._window.next_due_ms(), self._unreadable.first_due_ms())
        return 0 if due_ms is None else max(0, self._proposer.now_ms() - due_ms)

    @property
    def forwards_in_flight(self) -> int:
        """Messages on their way to other raft groups."""
        return len(self._forwards)

    @property
    def forward_bytes(self) -> int:
        """Their stored bytes."""
        return self._forwards.in_flight_bytes

    @property
    def forwards_unanswered(self) -> int:
        """Messages that may be in other raft groups already."""
        return self._forwards.unanswered

    def added(self, became: Sequence[tuple[PendingKey, PartKind]]) -> None:
        """Take in messages that became pending, or that were put off."""
        for key, kind in became:
            self.counts.changed(kind, 1)
            self._add(key)

    def wake(self) -> None:
        """Let the timer look at the time again."""
        self._wake.set()

    def recount(self) -> None:
        """Count anew what waits: rows went with a topic."""
        self.counts.is_stale = True
        self._forwards.forget_dropped()
        self._wake.set()

    def end(self) -> None:
        """Stop: leadership was lost."""
        self._ended = True
        self._wake.set()

    async def run(self) -> None:
        """Deliver and check until `end`, or until cancelled."""
        async with asyncio.TaskGroup() as work:
            while not self._ended:
                if self.counts.is_stale:
                    self.counts.is_stale = False
                    work.create_task(self._count())
                try:
                    await self._turn(work)
                except StateError as error:
                    self._tell_of(error)
                    await self._pause_to_retry()

    # One turn -----------------------------------------------------------------------------------

    async def _turn(self, work: asyncio.TaskGroup) -> None:
        self._wake.clear()
        if self._window.wants_rows:
            await self._read_rows()
            if self._ended:
                # The rows are another leader's to decide on by now (rule 38).
                return
        room = min(self._options.batch, self._resolver.room_for_due)
        self._waits_for_room = not room
        if not room:
            await self._sleep(None)
            return
        now_ms = self._proposer.now_ms()
        for key in self._unreadable.take(now_ms):
            self._window.add(key)
        keys = self._window.take(now_ms, room)
        if not keys:
            await self._sleep(now_ms)
            return
        checks, forwards = self.decide(keys, now_ms)
        if checks:
            work.create_task(self._transactions.send(checks))
        for batch in self._forwards.batches(forwards):
            work.create_task(self._forwards.perform(batch))
        if self._was_refused:
            await self._pause_to_retry()
        else:
            # Messages that come due meanwhile share an entry; a full batch has more behind it.
            full = len(keys) == room
            await asyncio.sleep(0 if full else self._options.turn_interval_ms / 1_000)

    def decide(self, keys: Sequence[PendingKey], now_ms: int) -> tuple[list[Check], list[Forward]]:
        """Decide about messages that are due, and propose it.

        Args:
            keys: taken out of the window.
            now_ms: group time.

        Returns:
            What is to be sent: checks, once they are committed, and messages to other raft groups.
            A message whose row cannot be read is tried again after a while, and delays no other
            one.
        """
        checks: list[Check] = []
        forwards: list[Forward] = []
        can_place: dict[Target, bool] = {}
        ways: dict[int | None, CheckWay] = {}
        failure: StateError | None = None
        for key in keys:
            try:
                waiting = self._resolver.find_due(key)
                if waiting is None:
                    continue
                row = waiting.row
                if row.kind is PartKind.HALF and row.checks != DELIVERING:
                    self._check(waiting, now_ms, checks, ways)
                else:
                    self._deliver(waiting, can_place, forwards)
            except StateError as error:
                failure = error
                if not self._unreadable.add(key, now_ms):
                    self._window.add(key)
                    self._was_refused = True
        if failure is not None:
            self._tell_of(failure)
        self._resolver.flush()
        return checks, forwards

    def _check(
        self,
        waiting: Waiting,
        now_ms: int,
        checks: list[Check],
        ways: dict[int | None, CheckWay],
    ) -> None:
        if self._is_dropped(waiting):
            self._resolver.discard(waiting, End.TOPIC_DROPPED)
            return
        check = self._transactions.due_check(waiting, now_ms, ways)
        if check is not None:
            checks.append(check)

    def _deliver(
        self, waiting: Waiting, can_place: dict[Target, bool], forwards: list[Forward]
    ) -> None:
        target = target_of(waiting.row)
        is_open = can_place.get(target)
        if is_open is None:
            is_open = can_place[target] = self._resolver.can_place(target)
        if is_open and not self._forwards.may_have_arrived(waiting.key.ref):
            is_half = waiting.row.kind is PartKind.HALF
            self._resolver.deliver(waiting, target, End.COMMITTED if is_half else End.DELIVERED)
        elif self._is_dropped(waiting):
            self._resolver.discard(waiting, End.TOPIC_DROPPED)
        elif waiting.row.checks != DELIVERING:
            self._forwards.begin(waiting)
        else:
            forward = self._forwards.plan(waiting)
            if forward is not None:
                forwards.append(forward)
            else:
                self._forwards.reschedule(waiting)

    def _is_dropped(self, waiting: Waiting) -> bool:
        return (DropKind.TOPIC, waiting.row.topic_id) in self._machine.dropped

    async def _read_rows(self) -> None:
        """Read the next rows into the window.

        Raises:
            StateError: they cannot be read.
        """
        begin, limit = self._window.begin_reading()
        rows = self._machine.rows.pending.keys(begin)
        try:
            keys = await self._run_read(lambda: list(islice(rows, limit)))
        except Refused as refused:
            self._window.not_read()
            raise StateError(refused.reason) from refused
        except BaseException:
            self._window.not_read()
            raise
        self._window.read(keys)

    # Sleeping -----------------------------------------------------------------------------------

    async def _sleep(self, now_ms: int | None) -> None:
        """Sleep until the next message is due or `wake`; None: until `wake`."""
        due_ms = _earlier(self._window.next_due_ms(), self._unreadable.next_retry_ms())
        if now_ms is None or due_ms is None:
            self._sleeps_until_ms = None
            await self._wake.wait()
            return
        self._sleeps_until_ms = due_ms
        wait_s = max((due_ms - now_ms) / 1_000, _WAIT_MIN_S)
        if wait_s > _LONG_WAIT_S:
            wait_s *= _LONG_WAIT_SHARE
        timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _tell_of(self, failure: StateError) -> None:
        self._logger.warning(
            "timer waits", raft_group=self._machine.raft_group, reason=str(failure)
        )

    async def _pause_to_retry(self) -> None:
        self._was_refused = False
        await asyncio.sleep(self._options.retry_ms / 1_000)

    def _add(self, key: PendingKey) -> None:
        self._window.add(key)
        if self._sleeps_until_ms is None or key.due_ms < self._sleeps_until_ms:
            self._wake.set()

    async def _count(self) -> None:
        try:
            await self.counts.count()
        except StateError as error:
            # The scrub of rows is not this task's; deliveries find what they can read.
            self._logger.warning(
                "waiting messages not counted",
                raft_group=self._machine.raft_group,
                reason=str(error),
            )

    # Results of decisions -----------------------------------------------------------------------

    def _resolved(self, decision: Decision, now_ms: int) -> None:
        if self._waits_for_room:
            self._wake.set()
        key, row = decision.before
        # A rescheduled message is added again by `added`.
        self.counts.changed(row.kind, -1)
        end = decision.end
        if end is None:
            return
        self._forwards.ended(decision.ref)
        self._instruments.resolved.add(1, _RESULTS[end])
        if end is End.DELIVERED:
            self._instruments.late_ms.record(now_ms - key.due_ms)
        elif end is End.COMMITTED:
            self._instruments.finish_s.record((now_ms - row.store_time_ms) / 1_000)

    def _undone(self, decision: Decision) -> None:
        key, now_ms = decision.before.key, self._proposer.now_ms()
        if decision.is_unplaced and key.due_ms <= now_ms and self._unreadable.add(key, now_ms):
            # Others are placed meanwhile.
            self._wake.set()
            return
        self._was_refused = True
        self._add(key)


def _earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two times; None: there is none."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)
