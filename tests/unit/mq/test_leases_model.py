"""`QueueLeases` against a naive model that only knows rows, and against its own replay.

The model is the specification written as slow as possible: every question looks at every row.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata_mq.commands.common import decode_lease, decode_leases, encode_leases
from strata_mq.leases.queue_leases import (
    Columns,
    Lease,
    LeaseChange,
    LeaseState,
    QueueLeases,
    TakeRequest,
)

TAGS = (11, 22)
GROUPS = (0, 7, 8)
HOLDERS = (501, 502)
MAX_BLOCKED = 3
MAX_IN_FLIGHT = 6
AUTO_RENEW_LIMIT_MS = 5_000


class Naive:
    """Plain list of leases handed out and of rows, with no index at all."""

    def __init__(self) -> None:
        self.head = 0
        self.generation = 0
        self.rows: dict[int, Lease] = {}

    def apply(self, change: LeaseChange | None) -> None:
        """Write a change blindly, through its encoding, as apply does."""
        if change is None:
            return
        _, sections = decode_leases(encode_leases(1, [(1, 2, 3, change)]))
        for section in sections:
            if section.clear:
                self.rows.clear()
            for offset, row in section.puts:
                self.rows[int.from_bytes(offset)] = decode_lease(row)
            for offset in section.deletes:
                del self.rows[int.from_bytes(offset)]
            if section.head_changed:
                self.head, self.generation = section.head, section.generation

    def deadline_ms(self, lease: Lease) -> int:
        if lease.auto_renewed:
            return lease.taken_at_ms + AUTO_RENEW_LIMIT_MS
        return lease.visible_at_ms

    def is_held(self, offset: int, now_ms: int) -> bool:
        lease = self.rows.get(offset)
        return (
            lease is not None
            and lease.state is LeaseState.LEASED
            and self.deadline_ms(lease) > now_ms
        )

    def expected_take(
        self,
        request: TakeRequest,
        wanted: frozenset[int] | None,
        now_ms: int,
        messages: list[tuple[int, int, int]],
        *,
        fifo: bool,
    ) -> list[int]:
        """Return the offsets that a take must give, in order (when no limit is in the way)."""
        if fifo and request.attempt:
            repeated = [
                offset
                for offset in sorted(self.rows)
                if self.rows[offset].attempt == request.attempt and self.is_held(offset, now_ms)
            ]
            if repeated:
                return repeated
        pop = NaivePop(request)
        for offset in self.visible_order(now_ms, fifo=fifo):
            if not pop.give(offset, self.rows[offset].length):
                return pop.given
        self.expect_new(pop, wanted, messages, fifo=fifo)
        return pop.given

    def expect_new(
        self,
        pop: NaivePop,
        wanted: frozenset[int] | None,
        messages: list[tuple[int, int, int]],
        *,
        fifo: bool,
    ) -> None:
        groups = {offset: lease.group_hash for offset, lease in self.rows.items()}
        blocked = {
            offset
            for offset, lease in self.rows.items()
            if lease.state is LeaseState.BLOCKED and offset not in pop.given
        }
        for offset in range(self.head, len(messages)):
            tag, group, length = messages[offset]
            if wanted is not None and tag not in wanted:
                continue
            if len(pop.given) >= pop.request.max_messages or (fifo and len(blocked) >= MAX_BLOCKED):
                return
            if len(groups) - len(blocked) >= MAX_IN_FLIGHT:
                return
            behind = any(
                groups[o] == group and (o not in pop.given or self.was_delivered(o)) for o in groups
            )
            if fifo and behind:
                blocked.add(offset)
            elif not pop.give(offset, length):
                return
            groups[offset] = group

    def visible_order(self, now_ms: int, *, fifo: bool) -> list[int]:
        visible = [
            offset
            for offset in sorted(self.rows)
            if not self.is_held(offset, now_ms) and not self.rows[offset].exhausted
        ]
        if not fifo:
            return visible
        ordered: list[int] = []
        for offset in visible:
            group = self.rows[offset].group_hash
            of_group = [o for o in sorted(self.rows) if self.rows[o].group_hash == group]
            if of_group[0] != offset:
                continue
            for follower in of_group:
                again = any(map(self.was_delivered, of_group[: of_group.index(follower)]))
                if follower not in visible or (again and not self.was_delivered(follower)):
                    break
                ordered.append(follower)
        return ordered

    def was_delivered(self, offset: int) -> bool:
        return offset in self.rows and self.rows[offset].attempts > 0


class NaivePop:
    """The offsets that a pop has room for."""

    def __init__(self, request: TakeRequest) -> None:
        self.request = request
        self.given: list[int] = []
        self.size = 0

    def give(self, offset: int, length: int) -> bool:
        if len(self.given) >= self.request.max_messages:
            return False
        if self.given and self.size + length > self.request.max_bytes:
            return False
        self.given.append(offset)
        self.size += length
        return True


class LeaseMachine(RuleBasedStateMachine):
    """Random lives of one consumer group on one queue."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.messages: list[tuple[int, int, int]] = []
        self.handles: list[tuple[int, int, int, int]] = []
        self.consumed: set[int] = set()
        self.trimmed = 0
        self.fifo = self.order_in_use = False
        self.max_attempts = 0
        self.naive = Naive()
        self.leases = self.build()

    def build(self) -> QueueLeases:
        # By what changed only.
        self.known_holders: set[int] = set()
        return QueueLeases(
            head=self.naive.head,
            generation=self.naive.generation,
            rows=self.naive.rows.items(),
            max_blocked=MAX_BLOCKED,
            max_in_flight=MAX_IN_FLIGHT,
            auto_renew_limit_ms=AUTO_RENEW_LIMIT_MS,
        )

    @initialize(fifo=st.booleans(), max_attempts=st.sampled_from((0, 1, 3)))
    def choose(self, fifo: bool, max_attempts: int) -> None:
        self.fifo = fifo
        self.max_attempts = max_attempts

    @rule(
        tags=st.lists(st.sampled_from((0, *TAGS)), min_size=1, max_size=6),
        group=st.sampled_from(GROUPS),
        other=st.sampled_from(GROUPS),
        length=st.integers(1, 40),
    )
    def append(self, tags: list[int], group: int, other: int, length: int) -> None:
        for number, tag in enumerate(tags):
            self.messages.append((tag, group if number % 2 else other, length + number))

    @rule(milliseconds=st.sampled_from((0, 1, 99, 100, 1_000, 5_000)))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(
        max_messages=st.sampled_from((1, 2, 5, 9)),
        max_bytes=st.sampled_from((1, 60, 10_000)),
        auto_renew=st.booleans(),
        holder=st.sampled_from(HOLDERS),
        attempt=st.sampled_from((0, 0, 901, 902)),
        wanted=st.sampled_from((None, None, frozenset({TAGS[0]}), frozenset(TAGS))),
        cuts=st.lists(st.integers(1, 7), max_size=4),
    )
    def take(
        self,
        max_messages: int,
        max_bytes: int,
        auto_renew: bool,
        holder: int,
        attempt: int,
        wanted: frozenset[int] | None,
        cuts: list[int],
    ) -> None:
        request = TakeRequest(
            max_messages=max_messages,
            max_bytes=max_bytes,
            invisible_ms=100,
            auto_renew=auto_renew,
            holder=holder,
            attempt=attempt,
            fifo=self.fifo,
            max_attempts=self.max_attempts,
            dead_letter_topic_id=99,
        )
        expected = self.naive.expected_take(
            request, wanted, self.now_ms, self.messages, fifo=self.fifo
        )
        held_before = {o for o in self.naive.rows if self.naive.is_held(o, self.now_ms)}
        was_ready = self.leases.peek_ready(self.now_ms, len(self.messages))
        head_before = self.leases.head
        taken = self.leases.take(
            request, self.now_ms, len(self.messages), self.columns(head_before, cuts, wanted)
        )
        offsets = [offset for offset, _ in taken.leases]
        assert offsets == expected
        if self.fifo == self.order_in_use:
            assert was_ready or taken.repeated or (not offsets and taken.change is None)
        self.order_in_use = self.fifo
        if not taken.repeated:
            assert not held_before & set(offsets), "one message, two holders"
            if self.fifo:
                self.nothing_new_goes_out_behind_what_was_delivered(offsets)
        self.naive.apply(taken.change)
        for offset in range(head_before, self.leases.head):
            if offset not in self.naive.rows:
                tag = self.messages[offset][0]
                assert wanted is not None and tag not in wanted, "a wanted message was lost"
                self.consumed.add(offset)
        for offset, lease in taken.leases:
            assert lease.group_hash == self.messages[offset][1]
            self.handles.append(
                (offset, lease.lease_number, self.leases.generation, lease.visible_at_ms)
            )

    def nothing_new_goes_out_behind_what_was_delivered(self, offsets: list[int]) -> None:
        """A first delivery of a message group follows none that an earlier batch gave."""
        for offset in offsets:
            if self.naive.was_delivered(offset):
                continue
            group = self.messages[offset][1]
            unacked = {
                earlier
                for earlier in self.naive.rows
                if earlier < offset
                and self.messages[earlier][1] == group
                and self.naive.was_delivered(earlier)
            }
            assert not unacked, f"{offset} goes out while {unacked} are not acked"

    def columns(self, head: int, cuts: list[int], wanted: frozenset[int] | None) -> list[Columns]:
        """Cover head .. end by several runs, the first one starting before head."""
        runs = []
        start = max(self.trimmed, head - 2)
        bounds = [start]
        for cut in cuts:
            bounds.append(min(bounds[-1] + cut, len(self.messages)))
        bounds.append(len(self.messages))
        for first, end in pairwise(bounds):
            part = self.messages[first:end]
            runs.append(
                Columns(
                    first,
                    len(part),
                    [at for at, (tag, _, _) in enumerate(part) if tag in wanted]
                    if wanted
                    else None,
                    [group for _, group, _ in part],
                    [length for _, _, length in part],
                )
            )
        return runs

    @precondition(lambda self: self.handles)
    @rule(choice=st.data())
    def ack(self, choice: st.DataObject) -> None:
        offset, number, generation, visible_at_ms = self.pick(choice)
        valid = self.handle_is_valid(offset, number, generation)
        repeat = (
            offset < self.naive.head
            and offset not in self.naive.rows
            and generation == self.naive.generation
            and (visible_at_ms == 0 or visible_at_ms > self.now_ms)
        )
        ok, change = self.leases.ack(offset, number, generation, visible_at_ms, self.now_ms)
        assert (ok, change is not None) == (valid or repeat, valid)
        if valid:
            self.consumed.add(offset)
        self.naive.apply(change)

    @precondition(lambda self: self.handles)
    @rule(choice=st.data(), invisible_ms=st.sampled_from((0, 50, 700)))
    def change_invisible(self, choice: st.DataObject, invisible_ms: int) -> None:
        offset, number, generation, visible_at_ms = self.pick(choice)
        valid = self.handle_is_valid(offset, number, generation)
        lease, change = self.leases.change_invisible(
            offset, number, generation, visible_at_ms, invisible_ms, self.now_ms
        )
        assert (lease is not None) == valid == (change is not None)
        self.naive.apply(change)
        if lease is not None:
            assert lease == self.naive.rows[offset]
            assert lease.lease_number == number + 1
            self.handles.append((offset, lease.lease_number, generation, lease.visible_at_ms))

    @precondition(lambda self: self.handles)
    @rule(choice=st.data())
    def release_undelivered(self, choice: st.DataObject) -> None:
        offset, number, generation, _ = self.pick(choice)
        before = self.naive.rows.get(offset)
        is_last = self.is_last_lease(offset, number, generation)
        change = self.leases.release_undelivered(offset, number, generation, self.now_ms)
        assert (change is not None) == is_last
        self.naive.apply(change)
        if is_last:
            assert before is not None
            row = self.naive.rows[offset]
            left = max(before.attempts - 1, 0)
            assert (row.state, row.attempts) == (LeaseState.WAITING, left)
        assert self.leases.release_undelivered(offset, number, generation, self.now_ms) is None

    @precondition(lambda self: self.handles)
    @rule(choice=st.data())
    def reschedule_undelivered(self, choice: st.DataObject) -> None:
        offset, number, generation, _ = self.pick(choice)
        before = self.naive.rows.get(offset)
        change = self.leases.reschedule_undelivered(offset, number, generation, self.now_ms + 70)
        self.naive.apply(change)
        held = before is not None and before.state is LeaseState.LEASED
        assert (change is not None) == (held and self.is_last_lease_of(before, number, generation))
        if change is not None:
            assert before is not None
            row = self.naive.rows[offset]
            assert (row.state, row.attempts) == (LeaseState.LEASED, max(before.attempts - 1, 0))
            assert row.visible_at_ms == self.now_ms + 70

    @precondition(lambda self: self.handles)
    @rule(choice=st.data())
    def forward_to_dead_letter(self, choice: st.DataObject) -> None:
        offset, number, generation, _ = self.pick(choice)
        valid = self.handle_is_valid(offset, number, generation)
        lease, change = self.leases.remove(offset, number, generation, self.now_ms)
        assert (lease is not None) == valid == (change is not None)
        if valid:
            self.consumed.add(offset)
        self.naive.apply(change)

    @rule(drop=st.booleans())
    def expire(self, drop: bool) -> None:
        change, exhausted = self.leases.expire(self.now_ms)
        self.naive.apply(change)
        due = [
            offset
            for offset, lease in self.naive.rows.items()
            if lease.state is LeaseState.LEASED and not self.naive.is_held(offset, self.now_ms)
        ]
        assert not due
        spent = {
            offset
            for offset, lease in self.naive.rows.items()
            if lease.state is not LeaseState.LEASED and lease.exhausted
        }
        assert {offset for offset, _ in exhausted} == spent
        deadline_ms = self.leases.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms
        if drop:
            for offset, _ in exhausted:
                self.naive.apply(self.leases.drop_exhausted(offset))
                assert self.leases.drop_exhausted(offset) is None
                self.consumed.add(offset)

    @rule(holder=st.sampled_from(HOLDERS))
    def release_holder(self, holder: int) -> None:
        self.naive.apply(self.leases.release_holder(holder, self.now_ms))
        assert holder not in self.leases.holders()

    @rule(back=st.integers(0, 20))
    def reset(self, back: int) -> None:
        head = max(self.trimmed, len(self.messages) - back)
        self.naive.apply(self.leases.reset(head))
        self.consumed = {offset for offset in self.consumed if offset < head}
        self.consumed.update(range(self.trimmed, head))

    @rule(step=st.integers(0, 4))
    def trim(self, step: int) -> None:
        self.trimmed = min(self.trimmed + step, len(self.messages))
        change, dropped = self.leases.trim(self.trimmed)
        assert dropped == (len(change.deletes) if change else 0)
        self.naive.apply(change)

    @rule()
    def change_leader(self) -> None:
        """A new leader knows the rows and nothing else."""
        self.leases = self.build()
        self.order_in_use = False

    @rule()
    def switch_mode(self) -> None:
        self.fifo = not self.fifo

    def pick(self, choice: st.DataObject) -> tuple[int, int, int, int]:
        return choice.draw(st.sampled_from(self.handles[-12:]))

    def handle_is_valid(self, offset: int, number: int, generation: int) -> bool:
        return (
            generation == self.naive.generation
            and self.naive.is_held(offset, self.now_ms)
            and self.naive.rows[offset].lease_number == number
        )

    def is_last_lease(self, offset: int, number: int, generation: int) -> bool:
        return self.is_last_lease_of(self.naive.rows.get(offset), number, generation)

    def is_last_lease_of(self, row: Lease | None, number: int, generation: int) -> bool:
        """Whether nothing came after a lease but its end."""
        return (
            row is not None
            and generation == self.naive.generation
            and row.state is not LeaseState.BLOCKED
            and row.lease_number == number
        )

    @invariant()
    def rows_written_are_the_rows_held(self) -> None:
        assert dict(self.leases.rows()) == self.naive.rows
        assert (self.leases.head, self.leases.generation) == (
            self.naive.head,
            self.naive.generation,
        )

    @invariant()
    def counts_and_cursor_follow_from_rows(self) -> None:
        states = [lease.state for lease in self.naive.rows.values()]
        assert self.leases.in_flight == states.count(LeaseState.LEASED)
        assert self.leases.blocked == states.count(LeaseState.BLOCKED)
        assert self.leases.waiting == len(states) - self.leases.in_flight
        assert self.leases.cursor() == min(self.naive.rows, default=self.naive.head)
        held = {
            lease.holder
            for lease in self.naive.rows.values()
            if lease.auto_renewed and lease.state is LeaseState.LEASED
        }
        assert set(self.leases.holders()) == held
        for holder in self.leases.take_changed_holders():
            known, holds = self.known_holders, self.leases.holds(holder)
            (known.add if holds else known.discard)(holder)
        assert self.known_holders == held

    @invariant()
    def nothing_is_lost(self) -> None:
        for offset in range(self.trimmed, len(self.messages)):
            where = (
                offset in self.consumed,
                offset in self.naive.rows,
                offset >= self.naive.head,
            )
            assert sum(where) == 1, f"offset {offset}: {where}"

    @invariant()
    def limits_hold(self) -> None:
        assert self.leases.blocked <= MAX_BLOCKED
        assert len(self.naive.rows) - self.leases.blocked <= MAX_IN_FLIGHT + MAX_BLOCKED

    @invariant()
    def deadline_is_the_earliest(self) -> None:
        spent = any(
            lease.exhausted and lease.state is not LeaseState.LEASED
            for lease in self.naive.rows.values()
        )
        deadlines = [
            self.naive.deadline_ms(lease)
            for lease in self.naive.rows.values()
            if lease.state is LeaseState.LEASED
        ]
        found = self.leases.next_deadline_ms()
        assert found == min(deadlines, default=None) or (spent and found == 0)


LeaseMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=50, deadline=None, print_blob=True
)
TestLeases = LeaseMachine.TestCase
