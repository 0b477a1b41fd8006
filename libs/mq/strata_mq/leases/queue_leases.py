"""Leases of one consumer group on one queue: the holder of each message, and what comes next.

Pure. The leader keeps one `QueueLeases` per active (consumer group, queue) as speculative state
(rule 1): every method decides, changes the object at once and returns a `LeaseChange`. A LEASES
command carries that change, and apply later writes it as rows without evaluating anything.

State (rule 24): `head` is the first offset that was never examined; every lower offset without a
row is consumed (acked or filtered out). A row is LEASED (invisible until `visible_at_ms`, or as
long as `holder` lives), WAITING (visible again), or BLOCKED (FIFO: examined, never delivered,
because its message group has an earlier unacked message). cursor = lowest row, else head.

FIFO lock per message group: a message of a group is delivered only when no earlier message of the
group is leased, waiting or blocked, except together with it in the same batch, in order. A batch
that redelivers a message also contains the unacked messages delivered after it, and no new ones. A
message without a message group in a FIFO consumer group counts as the group with hash 0.

Cost: no method scans all rows, except construction, a switch between FIFO and plain, and `reset`.
`rows` holds the rows and the indexes for this, `ended` what ends leases without their consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strata_mq.leases.batch import TakeBatch
from strata_mq.leases.ended import EndingLeases
from strata_mq.leases.types import (
    Columns,
    Lease,
    LeaseChange,
    LeaseState,
    Taken,
    TakeRequest,
    merge_changes,
)

__all__ = [
    "Columns",
    "Lease",
    "LeaseChange",
    "LeaseState",
    "QueueLeases",
    "TakeRequest",
    "Taken",
    "merge_changes",
]

_LEASED = LeaseState.LEASED
_WAITING = LeaseState.WAITING
_BLOCKED = LeaseState.BLOCKED
# Stands for a row that is gone.
_GONE = Lease(_WAITING, 0, 0, 0, 0, 0, 0, 0, 0, 0, False)


class QueueLeases(EndingLeases):
    """See the module docstring; state and attributes are those of `QueueLeaseRows`."""

    __slots__ = ("_max_blocked", "_max_in_flight")

    def __init__(
        self,
        *,
        head: int,
        generation: int = 0,
        rows: Iterable[tuple[int, Lease]] = (),
        max_blocked: int = 10_000,
        max_in_flight: int = 100_000,
        auto_renew_limit_ms: int = 10_800_000,
        max_changes: int = 4096,
        lost: Mapping[int, int] | None = None,
    ) -> None:
        """Take up state as stored.

        Args:
            head: See `QueueLeaseRows`.
            generation: See `QueueLeaseRows`.
            rows: (offset, lease) below head, in any order.
            max_blocked: BLOCKED rows at which a FIFO head stops.
            max_in_flight: LEASED and WAITING rows at which the head stops; rows in all are at most
                max_in_flight + max_blocked.
            auto_renew_limit_ms: Longest life of an auto-renewed lease (rule 25).
            max_changes: Rows after which one `expire` or `release_holder` stops (expire: at the
                end of a batch).
            lost: See `EndingLeases`.
        """
        super().__init__(
            head,
            generation,
            rows,
            auto_renew_limit_ms=auto_renew_limit_ms,
            max_changes=max_changes,
            lost={} if lost is None else lost,
        )
        self._max_blocked = max_blocked
        self._max_in_flight = max_in_flight

    def write_head(self) -> LeaseChange:
        """Return a change that only stores the head: of a consumer group seen first now.

        Without it a group that starts at the end of the queue would start later after a restart.
        """
        return LeaseChange(self.generation, self.head, True)

    # Taking -------------------------------------------------------------------------------------

    def wants_columns(self, next_offset: int) -> tuple[int, int]:
        """Return (first, count) of new offsets that `take` could look at; count 0: none.

        A shorter run from `first` on is enough for a pop; `take` stops where columns end.
        """
        return self.head, max(0, next_offset - self.head) if self._may_look() else 0

    def peek_ready(self, now_ms: int, next_offset: int) -> bool:
        """Whether `take` might find something: used to decide which parked pop to wake.

        FIFO or plain is as in the last `take`.
        """
        if self._order.ready() or (self.head < next_offset and self._may_look()):
            return True
        return self._deadlines.has_due(now_ms)

    def take(
        self, request: TakeRequest, now_ms: int, next_offset: int, columns: Sequence[Columns]
    ) -> Taken:
        """Lease up to max_messages: first visible rows, then new offsets covered by `columns`.

        Expired LEASED rows count as visible. A visible row whose attempts are used up is not
        delivered; it shows in `exhausted`. New offsets that are not selected are passed over with
        no row: nothing taken, a changed head and `peek_ready` mean that asking again makes sense.
        At least one message is given even if it is longer than max_bytes.

        Args:
            request: The pop.
            now_ms: Group time.
            next_offset: First offset of the queue that holds no message yet.
            columns: Runs in order, without a gap, the first starting at or below head. Offsets
                without a message belong to a run of which nothing is selected.
        """
        if request.fifo != self._fifo:
            self._use_order(fifo=request.fifo)
        if request.fifo and request.attempt:
            repeated = self.of_attempt(request.attempt, now_ms)
            if repeated:
                return self._give_again(repeated, request, now_ms)
        puts: dict[int, Lease] = {}
        self._expire_due(now_ms, puts)
        batch = TakeBatch(request, now_ms)
        self._take_visible(batch)
        head_before = self.head
        if not batch.full and self._may_look():
            self._take_new(batch, next_offset, columns)
        if batch.taken:
            self._hold_batch(batch)
        puts.update(batch.taken)
        puts.update(batch.blocked)
        head_changed = self.head != head_before
        if not puts and not head_changed:
            return Taken((), None)
        change = LeaseChange(self.generation, self.head, head_changed, tuple(puts.items()))
        return Taken(batch.taken, change)

    def _give_again(
        self, held: Sequence[tuple[int, Lease]], request: TakeRequest, now_ms: int
    ) -> Taken:
        """Give the leases of an attempt once more.

        Through another broker they get its mark and new numbers: what the first broker still says
        of them, or its loss, concerns nobody any more (rule 36).
        """
        moved: dict[int, Lease] = {}
        for offset, lease in held:
            if request.broker and lease.broker and lease.broker != request.broker:
                moved[offset] = lease._replace(
                    lease_number=lease.lease_number + 1,
                    broker=request.broker,
                    taken_at_ms=now_ms,
                )
        if not moved:
            return Taken(held, None, repeated=True)
        self._rows.update(moved)
        for offset, lease in moved.items():
            self._deadlines.push(self._deadlines.of(lease), (offset,), self.in_flight)
        given = [(offset, moved.get(offset, lease)) for offset, lease in held]
        return Taken(given, self._puts_change(moved), repeated=True)

    def of_attempt(self, attempt: int, now_ms: int) -> list[tuple[int, Lease]]:
        """Return the leases that pops of an attempt took and that still hold."""
        rows = self._rows
        return [
            (offset, rows[offset])
            for offset in self._attempts.of(attempt)
            if self._deadlines.of(rows[offset]) > now_ms
        ]

    def _take_visible(self, batch: TakeBatch) -> None:
        order, rows = self._order, self._rows
        candidates = order.candidates(one_per_message_group=batch.request.one_per_message_group)
        for offset in candidates:
            lease = rows[offset]
            if not batch.fits(lease.length):
                order.became_visible(offset, lease)
                return
            rows[offset] = batch.again(offset, lease)
            self.waiting -= 1
            if lease.state is _BLOCKED:
                self.blocked -= 1

    def _take_new(self, batch: TakeBatch, next_offset: int, columns: Sequence[Columns]) -> None:
        # Rows and counts follow once per run of columns, not per message.
        for run in columns:
            end = min(run.base_offset + run.message_count, next_offset)
            if end <= self.head:
                continue
            assert run.base_offset <= self.head, "columns leave a gap behind head"
            taken_before, blocked_before = len(batch.taken), len(batch.blocked)
            head = self._scan(run, end, batch)
            if len(batch.blocked) == blocked_before:
                new_rows = batch.taken[taken_before:]
            else:
                new_rows = sorted(batch.taken[taken_before:] + batch.blocked[blocked_before:])
            self._rows.update(new_rows)
            self._offsets.extend([offset for offset, _ in new_rows])
            self.head = head
            if head < end:
                return

    def _scan(self, run: Columns, end: int, batch: TakeBatch) -> int:
        """Look at offsets from head to end - 1 of a run; return the first not looked at."""
        base, lengths, group_hashes = run.base_offset, run.lengths, run.group_hashes
        order = self._order
        room = self._max_in_flight - (len(self._rows) - self.blocked)
        selected = run.selected_between(self.head - base, end - base)
        if not self._fifo:
            left = batch.take_plain(run, selected, room)
            return end if left is None else base + left
        for ordinal in selected:
            group_hash, length = group_hashes[ordinal], lengths[ordinal]
            if batch.full or room <= 0 or self.blocked >= self._max_blocked:
                return base + ordinal
            if order.blocks(group_hash):
                order.added(base + ordinal, batch.block(base + ordinal, group_hash, length))
                self.blocked += 1
                self.waiting += 1
                continue
            if not batch.fits(length):
                return base + ordinal
            lease = batch.fresh(base + ordinal, group_hash, length)
            room -= 1
            order.added(base + ordinal, lease)
        return end

    def _hold_batch(self, batch: TakeBatch) -> None:
        request = batch.request
        offsets = [offset for offset, _ in batch.taken]
        self.in_flight += len(offsets)
        if request.auto_renew:
            self._held.add(request.holder, offsets)
        if batch.attempt:
            self._attempts.add(batch.attempt, offsets, self.in_flight)
        # All leases of a batch end together: one entry for all.
        deadline_ms = self._deadlines.of(batch.taken[0][1])
        self._deadlines.push(deadline_ms, offsets, self.in_flight)

    def _may_look(self) -> bool:
        if self._fifo and self.blocked >= self._max_blocked:
            return False
        return len(self._rows) - self.blocked < self._max_in_flight

    # Answers of consumers -----------------------------------------------------------------------

    def ack(
        self,
        offset: int,
        lease_number: int,
        generation: int,
        visible_at_ms: int,
        now_ms: int,
        *,
        repeated: bool = False,
    ) -> tuple[bool, LeaseChange | None]:
        """Consume a message. (True, change), (True, None) for a repeat, (False, None) = invalid.

        Rule 24: a missing row below head is OK while the handle's `visible_at_ms` > now (0: an
        auto-renewed handle, always OK below head); a row with another lease number, or whose lease
        ran out (visible_at <= now), is invalid, except that the first handle of an auto-renewed
        lease stays valid while it is held. `repeated`: an earlier try may have done it, and a
        missing row is OK whatever the time. Lease number 0: see `_is_acked`.
        """
        handle = (offset, lease_number, generation, visible_at_ms)
        (valid,), change = self.ack_all((handle,), now_ms, repeated=repeated)
        return valid, change

    def ack_all(
        self, handles: Iterable[tuple[int, int, int, int]], now_ms: int, *, repeated: bool = False
    ) -> tuple[list[bool], LeaseChange | None]:
        """Do what `ack` does for many (offset, lease number, generation, visible at ms) at once."""
        rows, current, fifo = self._rows, self.generation, self._fifo
        valid, gone = list[bool](), list[int]()
        for offset, lease_number, generation, visible_at_ms in handles:
            lease = rows.get(offset)
            if lease is None:
                in_time = repeated or visible_at_ms == 0 or visible_at_ms > now_ms
                is_known = offset < self.head and (generation == current or not lease_number)
                valid.append(is_known and in_time)
            elif self._is_acked(lease, lease_number, generation, visible_at_ms, now_ms):
                del rows[offset]
                if lease.auto_renewed:
                    self._let_go(offset, lease)
                if fifo:
                    self._order.removed(offset, lease)
                gone.append(offset)
                valid.append(True)
            else:
                valid.append(False)
        if not gone:
            return valid, None
        # The rest of what `_remove` does follows once for all.
        self.in_flight -= len(gone)
        self._shorten_index()
        return valid, LeaseChange(current, self.head, False, (), tuple(gone))

    def change_invisible(
        self,
        offset: int,
        lease_number: int,
        generation: int,
        visible_at_ms: int,
        invisible_ms: int,
        now_ms: int,
    ) -> tuple[Lease | None, LeaseChange | None]:
        """Set a new visible time: the lease gets a new number; None = invalid handle.

        0 makes the message visible at once (WAITING). The lease is not auto-renewed any more.
        """
        lease = self._rows.get(offset)
        if lease is None or not self._is_held(lease, lease_number, generation, now_ms):
            return None, None
        if invisible_ms <= 0:
            changed = self._make_visible(offset, lease, now_ms, lease.lease_number + 1)
        else:
            self._let_go(offset, lease)
            changed = lease.unheld(_LEASED, lease.lease_number + 1, now_ms + invisible_ms)
            self._rows[offset] = changed
            self._deadlines.push(changed.visible_at_ms, (offset,), self.in_flight)
        return changed, LeaseChange(self.generation, self.head, False, ((offset, changed),))

    def release_undelivered(
        self, offset: int, lease_number: int, generation: int, now_ms: int
    ) -> LeaseChange | None:
        """Make a message that nobody was given visible again; None: it was leased anew, or is gone.

        The attempt does not count (rule 36): a message becomes a dead letter by deliveries only.
        That holds for a lease that has ended meanwhile, too: its time was up, or its holder died.
        """
        lease = self._undelivered(offset, lease_number, generation)
        if lease is None:
            return None
        # Another number: who repeats this takes no second attempt back.
        number = lease_number + 1
        if lease.state is _LEASED:
            changed = self._make_visible(offset, lease, now_ms, number)
        else:
            changed = self._rows[offset] = lease.unheld(_WAITING, number, lease.visible_at_ms)
            if not changed.exhausted and offset in self._exhausted:
                del self._exhausted[offset]
                self._order.became_visible(offset, changed)
        return LeaseChange(self.generation, self.head, False, ((offset, changed),))

    def reschedule_undelivered(
        self, offset: int, lease_number: int, generation: int, visible_at_ms: int
    ) -> LeaseChange | None:
        """Keep a message that cannot be read back until then; None: the lease has ended.

        Nobody holds it and nobody was given it: the attempt does not count (rule 36).
        """
        lease = self._undelivered(offset, lease_number, generation)
        if lease is None or lease.state is not _LEASED:
            return None
        self._let_go(offset, lease)
        changed = self._rows[offset] = lease.unheld(_LEASED, lease_number + 1, visible_at_ms)
        self._deadlines.push(visible_at_ms, (offset,), self.in_flight)
        return LeaseChange(self.generation, self.head, False, ((offset, changed),))

    def _undelivered(self, offset: int, lease_number: int, generation: int) -> Lease | None:
        """Return the row of a lease as if it had not been taken; None: it is not the last one."""
        lease = self._rows.get(offset)
        if lease is None or lease.lease_number != lease_number or generation != self.generation:
            return None
        return None if lease.state is _BLOCKED else lease.not_counted()

    def changed_before(
        self,
        offset: int,
        lease_number: int,
        generation: int,
        visible_at_ms: int,
        invisible_ms: int,
        now_ms: int,
    ) -> Lease | None:
        """Return what a lost `change_invisible` with these arguments made; None: there was none.

        For a caller who repeats a call, because a handle that was changed is not valid again. A
        message that is leased later than before the handle's end was delivered anew. One whose row
        is gone was acked or moved after the change, and nobody can tell when: its handle ends as
        if the change were made now.
        """
        if generation != self.generation or offset >= self.head:
            return None
        number, lease = lease_number + 1, self._rows.get(offset)
        if lease is None:
            return _GONE._replace(lease_number=number, visible_at_ms=now_ms + max(invisible_ms, 0))
        if lease.lease_number < number or (visible_at_ms and lease.taken_at_ms >= visible_at_ms):
            return None
        if lease.lease_number > number:
            # Nothing else ends a lease before its time; somebody took the message since.
            early = visible_at_ms > 0
            return lease.unheld(_WAITING, number, lease.taken_at_ms) if early else None
        if invisible_ms <= 0:
            return lease if lease.state is _WAITING else None
        # One whose changed time is up waits since then.
        changed_at_ms = lease.visible_at_ms - invisible_ms
        same = not lease.auto_renewed and lease.taken_at_ms <= changed_at_ms <= now_ms
        return lease if same else None

    def remove(
        self, offset: int, lease_number: int, generation: int, now_ms: int
    ) -> tuple[Lease | None, LeaseChange | None]:
        """Take a valid lease's row away because the message goes to the dead-letter topic."""
        lease = self._rows.get(offset)
        if lease is None or not self._is_held(lease, lease_number, generation, now_ms):
            return None, None
        return lease, self._delete(offset, lease)

    # Position -----------------------------------------------------------------------------------

    def reset(self, head: int) -> LeaseChange:
        """Move to `head`, drop all rows, raise the generation: every older handle is void."""
        # Offsets of pull consumers are stored so: a range deletion for each would pile up.
        clear = bool(self._rows)
        self.head = head
        self.generation += 1
        self._forget_rows()
        self._use_order(fifo=self._fifo)
        return LeaseChange(self.generation, head, True, clear=clear)

    def trim(self, min_offset: int) -> tuple[LeaseChange | None, int]:
        """Drop rows below `min_offset` and lift head to it; returns how many were dropped."""
        deletes = []
        while (offset := self.cursor()) < min(min_offset, self.head):
            self._delete(offset, self._rows[offset])
            deletes.append(offset)
        head_changed = self.head < min_offset
        self.head = max(self.head, min_offset)
        if not deletes and not head_changed:
            return None, 0
        change = LeaseChange(self.generation, self.head, head_changed, (), tuple(deletes))
        return change, len(deletes)
