"""`QueueLeases` by example: one test per rule that a reader would ask about."""

from __future__ import annotations

import pytest

from strata_mq.commands.common import decode_leases, encode_leases
from strata_mq.leases.queue_leases import (
    Columns,
    Lease,
    LeaseChange,
    LeaseState,
    QueueLeases,
    merge_changes,
)
from tests.unit.mq.lease_examples import (
    HOLDER,
    INVISIBLE_MS,
    LATER_MS,
    NOW_MS,
    ack,
    columns,
    offsets,
    request,
)


def test_a_plain_pop_takes_new_messages_in_order_and_moves_the_head() -> None:
    """A pop of three out of five gives offsets 0, 1, 2, one shared lease, head 3, cursor 0."""
    leases = QueueLeases(head=0)
    taken = leases.take(request(3), NOW_MS, 5, columns(5))
    assert offsets(taken.leases) == [0, 1, 2]
    assert taken.leases[0][1] is taken.leases[2][1]
    assert taken.leases[0][1] == Lease(
        LeaseState.LEASED, 1, 17, 1, 5, LATER_MS, NOW_MS, HOLDER, 0, 0, False, 100
    )
    assert taken.change == LeaseChange(0, 3, True, tuple(taken.leases))
    assert (leases.head, leases.cursor(), leases.in_flight, leases.waiting) == (3, 0, 3, 0)


def test_the_cursor_moves_over_the_acked_prefix_only() -> None:
    """Acks out of order hold the cursor at the lowest offset that is not acked."""
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(), NOW_MS, 3, columns(3)).leases)
    assert ack(leases, 1, taken[1])
    assert leases.cursor() == 0
    assert ack(leases, 0, taken[0])
    assert leases.cursor() == 2
    assert ack(leases, 2, taken[2])
    assert leases.cursor() == 3 == leases.head


def test_acks_of_one_call_are_one_change() -> None:
    """Each handle has its own answer; a handle that comes twice is a repeat."""
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(), NOW_MS, 5, columns(5)).leases)
    good = [(offset, taken[offset].lease_number, 0, LATER_MS) for offset in (3, 0, 4)]
    void = (1, taken[1].lease_number + 1, 0, LATER_MS)
    valid, change = leases.ack_all([good[0], void, good[1], good[1], good[2]], NOW_MS + 1)
    assert valid == [True, False, True, True, True]
    assert change == LeaseChange(0, 5, False, (), (3, 0, 4))
    assert offsets(list(leases.rows())) == [1, 2]
    assert leases.in_flight == 2
    assert leases.ack_all([void], NOW_MS + 1) == ([False], None)
    assert leases.ack_all(good, NOW_MS + 1) == ([True] * 3, None)


def test_a_lease_is_found_by_its_end_too() -> None:
    """Lease number 0 names the lease that ends at a time, and no later lease of the message."""
    leases = QueueLeases(head=0, generation=3)
    leases.take(request(), NOW_MS, 3, columns(3))
    by_end = [(offset, 0, 0, LATER_MS) for offset in range(2)]
    early = (2, 0, 0, LATER_MS - 1)
    assert leases.ack_all([*by_end, early], NOW_MS + 1)[0] == [True, True, False]
    # A repeat is OK until that time, as with any handle.
    assert leases.ack_all(by_end, LATER_MS - 1) == ([True, True], None)
    assert leases.ack_all(by_end, LATER_MS) == ([False, False], None)
    again = leases.take(request(), LATER_MS + 5, 3, columns(3)).leases
    assert offsets(again) == [2]
    assert leases.ack_all([(2, 0, 0, LATER_MS)], LATER_MS + 6) == ([False], None)
    ends_ms = again[0][1].visible_at_ms
    assert leases.ack_all([(2, 0, 0, ends_ms)], LATER_MS + 6)[0] == [True]


def test_a_lease_without_an_end_is_not_found_by_it() -> None:
    """An auto-renewed lease ends with its holder, and a blocked message has no lease at all."""
    leases = QueueLeases(head=0)
    leases.take(request(1, auto_renew=True), NOW_MS, 1, columns(1))
    assert leases.ack_all([(0, 0, 0, LATER_MS), (0, 0, 0, 0)], NOW_MS) == ([False, False], None)


def test_messages_that_the_filter_does_not_want_take_no_row() -> None:
    """Filtered-out offsets are consumed at once; they count for the head, not for the pop."""
    leases = QueueLeases(head=0)
    taken = leases.take(request(2), NOW_MS, 5, columns(5, selected=[1, 3, 4]))
    assert offsets(taken.leases) == [1, 3]
    assert leases.head == 4
    assert leases.is_consumed(0)
    assert not leases.is_consumed(1)
    assert leases.cursor() == 1


def test_an_expired_lease_is_delivered_again_as_the_next_attempt() -> None:
    """At its visible time a message comes back with attempt 2 and lease number 2."""
    leases = QueueLeases(head=0)
    leases.take(request(), NOW_MS, 1, columns(1))
    assert leases.take(request(), LATER_MS - 1, 1, ()).leases == ()
    assert leases.next_deadline_ms() == LATER_MS
    ((offset, lease),) = leases.take(request(), LATER_MS, 1, ()).leases
    assert (offset, lease.attempts, lease.lease_number) == (0, 2, 2)


def test_a_handle_is_void_from_its_visible_time_on() -> None:
    """An ack at the very moment of expiry is refused, one millisecond earlier it counts."""
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(), NOW_MS, 2, columns(2)).leases)
    assert not ack(leases, 0, taken[0], LATER_MS)
    assert ack(leases, 1, taken[1], LATER_MS - 1)


def test_a_lease_that_was_acked_makes_nothing_ready_at_its_end() -> None:
    """The first end of all is no lease's any more; the next one is still waited for."""
    leases = QueueLeases(head=0)
    ((offset, lease),) = leases.take(request(max_messages=1), NOW_MS, 2, columns(2)).leases
    leases.take(request(max_messages=1), NOW_MS + 500, 2, columns(2))
    assert ack(leases, offset, lease)
    assert not leases.peek_ready(LATER_MS, 2)
    assert not leases.peek_ready(LATER_MS + 499, 2)
    assert leases.peek_ready(LATER_MS + 500, 2)


def test_acking_twice_is_fine_within_the_handle_and_invalid_after() -> None:
    """Rule 24: a missing row below head is OK while the handle's time is not up."""
    leases = QueueLeases(head=0)
    ((offset, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    assert leases.ack(offset, 1, 0, lease.visible_at_ms, NOW_MS)[1] is not None
    assert leases.ack(offset, 1, 0, lease.visible_at_ms, NOW_MS) == (True, None)
    assert leases.ack(offset, 1, 0, lease.visible_at_ms, LATER_MS) == (False, None)
    assert leases.ack(7, 1, 0, lease.visible_at_ms, NOW_MS) == (False, None)
    assert leases.ack(offset, 1, 0, 0, LATER_MS) == (True, None)


def test_change_invisible_gives_a_new_handle_and_voids_the_old_one() -> None:
    """After a change only the new lease number acks; the new time counts from now."""
    leases = QueueLeases(head=0)
    ((offset, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    changed, change = leases.change_invisible(
        offset, lease.lease_number, 0, lease.visible_at_ms, 5_000, NOW_MS + 10
    )
    assert changed is not None
    assert change == LeaseChange(0, 1, False, ((offset, changed),))
    assert (changed.lease_number, changed.visible_at_ms) == (2, NOW_MS + 5_010)
    assert not ack(leases, offset, lease)
    assert ack(leases, offset, changed)


def change(
    leases: QueueLeases, lease: Lease, invisible_ms: int, now_ms: int = NOW_MS
) -> Lease | None:
    """Change when offset 0 is visible again, by the handle of a lease."""
    handle = (0, lease.lease_number, leases.generation, lease.visible_at_ms)
    return leases.change_invisible(*handle, invisible_ms, now_ms)[0]


def changed_before(
    leases: QueueLeases, lease: Lease, invisible_ms: int, now_ms: int = NOW_MS + 900
) -> Lease | None:
    """Ask what a lost call with these arguments made of offset 0."""
    handle = (0, lease.lease_number, leases.generation, lease.visible_at_ms)
    return leases.changed_before(*handle, invisible_ms, now_ms)


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize("invisible_ms", [0, 60_000])
def test_a_repeated_change_finds_what_the_first_one_made(
    invisible_ms: int, auto_renew: bool
) -> None:
    """The same lease number and time as in the answer that was lost; else nothing is found."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(auto_renew=auto_renew), NOW_MS, 1, columns(1)).leases
    assert changed_before(leases, lease, invisible_ms) is None, "nothing was changed"
    changed = change(leases, lease, invisible_ms, NOW_MS + 500)
    assert changed_before(leases, lease, invisible_ms) == changed
    assert changed_before(leases, lease, 59_000) is None, "another wish"
    assert changed is not None
    assert changed_before(leases, changed, invisible_ms) is None, "another handle"
    leases.reset(0)
    assert changed_before(leases, lease, invisible_ms) is None, "another generation"


def test_a_repeat_is_no_excuse_for_a_lease_that_ran_out() -> None:
    """Delivered anew after the handle's end: the first try was too late already."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    leases.take(request(), LATER_MS, 1, ())
    for invisible_ms in (0, INVISIBLE_MS):
        assert changed_before(leases, lease, invisible_ms, LATER_MS + 1) is None


def test_a_message_made_visible_may_be_taken_before_the_repeat() -> None:
    """It was visible at once, as wished; the new holder is not disturbed."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    change(leases, lease, 0)
    ((_, taken),) = leases.take(request(), NOW_MS + 10, 1, ()).leases
    found = changed_before(leases, lease, 0)
    assert found is not None
    assert found.lease_number == lease.lease_number + 1 == taken.lease_number - 1
    assert ack(leases, 0, taken)


def test_change_invisible_to_zero_makes_the_message_deliverable_at_once() -> None:
    """A nack with 0 is WAITING: peek sees it and the next pop gives it."""
    leases = QueueLeases(head=0)
    ((offset, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    assert not leases.peek_ready(NOW_MS, 1)
    leases.change_invisible(offset, lease.lease_number, 0, lease.visible_at_ms, 0, NOW_MS)
    assert leases.peek_ready(NOW_MS, 1)
    assert (leases.in_flight, leases.waiting) == (0, 1)
    assert offsets(leases.take(request(), NOW_MS, 1, ()).leases) == [0]


def test_used_up_attempts_go_to_the_dead_letter_list_and_stay_until_dropped() -> None:
    """After the last attempt a message is listed by every expire, never delivered again."""
    leases = QueueLeases(head=0)
    leases.take(request(max_attempts=1), NOW_MS, 1, columns(1))
    change, exhausted = leases.expire(LATER_MS)
    assert change is not None
    assert [offset for offset, _ in exhausted] == [0]
    assert leases.take(request(max_attempts=1), LATER_MS, 1, ()).leases == ()
    assert not leases.peek_ready(LATER_MS, 1)
    assert leases.next_deadline_ms() is None
    assert leases.expire(LATER_MS) == (None, exhausted)
    assert leases.drop_exhausted(0) == LeaseChange(0, 1, False, (), (0,))
    assert leases.drop_exhausted(0) is None
    assert leases.cursor() == 1


def test_a_new_leader_lists_exhausted_rows_at_once() -> None:
    """Rows that were exhausted before the change of leader have a deadline of now."""
    spent = Lease(LeaseState.WAITING, 3, 3, 3, 5, NOW_MS, NOW_MS, 0, 0, 0, False, 100)
    leases = QueueLeases(head=1, rows=[(0, spent)])
    assert leases.next_deadline_ms() == 0
    assert leases.expire(NOW_MS) == (None, [(0, spent)])


def test_a_release_without_delivery_is_no_attempt() -> None:
    """With one attempt in all the message is still delivered; a repeat of the release is void."""
    leases = QueueLeases(head=0)
    only = request(max_attempts=1)
    ((_, lease),) = leases.take(only, NOW_MS, 1, columns(1)).leases
    assert leases.release_undelivered(0, lease.lease_number, 0, NOW_MS + 1) is not None
    assert leases.release_undelivered(0, lease.lease_number, 0, NOW_MS + 1) is None
    assert leases.expire(NOW_MS + 2) == (None, [])
    ((_, again),) = leases.take(only, NOW_MS + 3, 1, columns(1)).leases
    # One for the release, so that a repeat of it is void, and one for the new delivery.
    assert (again.attempts, again.lease_number) == (1, lease.lease_number + 2)
    assert leases.release_undelivered(0, lease.lease_number, 0, NOW_MS + 4) is None
    assert ack(leases, 0, again)


def test_an_auto_renewed_lease_lives_with_its_holder() -> None:
    """No expiry before the hard limit; a dead holder's messages come back at once (rule 25)."""
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(auto_renew=True), NOW_MS, 2, columns(2)).leases)
    assert taken[0].visible_at_ms == 0
    assert leases.holders() == (HOLDER,)
    assert ack(leases, 0, taken[0], LATER_MS + 3_600_000)
    change = leases.release_holder(HOLDER, LATER_MS)
    assert change is not None
    assert [offset for offset, _ in change.puts] == [1]
    assert leases.holders() == ()
    assert leases.release_holder(HOLDER, LATER_MS) is None
    assert not ack(leases, 1, taken[1], LATER_MS)


def test_holders_are_told_by_their_first_lease_and_their_last() -> None:
    """Leases in between change nothing; a reset takes from all, a load tells of all."""
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(2, auto_renew=True), NOW_MS, 4, columns(4)).leases)
    assert (leases.take_changed_holders(), leases.holds(HOLDER)) == ((HOLDER,), True)
    leases.take(request(1, auto_renew=True), NOW_MS, 4, columns(4))
    assert ack(leases, 0, taken[0])
    assert ack(leases, 1, taken[1])
    assert (leases.take_changed_holders(), leases.holds(HOLDER)) == ((), True)
    rows = leases.rows()
    leases.reset(3)
    assert (leases.take_changed_holders(), leases.holds(HOLDER)) == ((HOLDER,), False)
    assert (leases.take_changed_holders(), leases.holders()) == ((), ())
    loaded = QueueLeases(head=3, rows=rows)
    assert (loaded.take_changed_holders(), loaded.holds(HOLDER)) == ((HOLDER,), True)


def test_an_auto_renewed_lease_ends_at_the_hard_limit() -> None:
    """Three hours after it was taken the lease is over, whoever lives."""
    limit_ms = 10_800_000
    leases = QueueLeases(head=0)
    taken = dict(leases.take(request(auto_renew=True), NOW_MS, 1, columns(1)).leases)
    assert leases.next_deadline_ms() == NOW_MS + limit_ms
    assert leases.expire(NOW_MS + limit_ms - 1)[0] is None
    assert not ack(leases, 0, taken[0], NOW_MS + limit_ms)
    assert offsets(leases.take(request(), NOW_MS + limit_ms, 1, ()).leases) == [0]


def test_max_bytes_counts_redelivered_messages_too() -> None:
    """Rows keep the message's length, so a second delivery obeys the limit as the first did."""
    leases = QueueLeases(head=0)
    pop = request(max_bytes=250)
    assert offsets(leases.take(pop, NOW_MS, 5, columns(5)).leases) == [0, 1]
    assert offsets(leases.take(pop, LATER_MS, 5, columns(5)).leases) == [0, 1]
    assert offsets(leases.take(request(max_bytes=1), LATER_MS, 5, columns(5)).leases) == [2]


def test_the_head_stops_at_the_limits() -> None:
    """Beyond max_in_flight un-acked or max_blocked blocked rows nothing new is looked at."""
    leases = QueueLeases(head=0, max_in_flight=3)
    assert len(leases.take(request(), NOW_MS, 9, columns(9)).leases) == 3
    assert leases.wants_columns(9) == (3, 0)
    assert not leases.peek_ready(NOW_MS, 9)
    fifo = QueueLeases(head=0, max_blocked=2)
    assert offsets(fifo.take(request(1, fifo=True), NOW_MS, 9, columns(9)).leases) == [0]
    fifo.take(request(fifo=True), NOW_MS, 9, columns(9))
    assert (fifo.head, fifo.blocked, fifo.wants_columns(9)) == (3, 2, (3, 0))
    assert not fifo.peek_ready(NOW_MS, 9)


def test_a_take_looks_as_far_as_columns_go() -> None:
    """A filter that matches nothing moves the head to their end, and says that there is more."""
    leases = QueueLeases(head=0)
    assert leases.wants_columns(10) == (0, 10)
    taken = leases.take(request(), NOW_MS, 10, [Columns(0, 4, (), (), ())])
    assert taken.change == LeaseChange(0, 4, True)
    assert leases.peek_ready(NOW_MS, 10)


def test_selected_messages_below_the_head_are_not_taken_again() -> None:
    """A run may begin before the head: only what lies behind it counts."""
    leases = QueueLeases(head=0)
    run = columns(6, selected=[0, 2, 3, 5])
    assert offsets(leases.take(request(2), NOW_MS, 6, run).leases) == [0, 2]
    assert offsets(leases.take(request(2), NOW_MS, 4, run).leases) == [3]
    assert leases.head == 4
    assert offsets(leases.take(request(2), NOW_MS, 6, run).leases) == [5]


def test_expire_and_release_change_a_bounded_number_of_rows() -> None:
    """Rows over max_changes are left for the next call."""
    leases = QueueLeases(head=0, max_changes=4)
    for offset in range(6):
        leases.take(request(1), NOW_MS, 6, columns(6 - offset, base=offset))
    change, _ = leases.expire(LATER_MS)
    assert change is not None
    assert len(change.puts) == 4
    deadline_ms = leases.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= LATER_MS
    renewed = QueueLeases(head=0, max_changes=4)
    renewed.take(request(auto_renew=True), NOW_MS, 6, columns(6))
    sizes = []
    while change := renewed.release_holder(HOLDER, NOW_MS):
        sizes.append(len(change.puts))
    assert sizes == [4, 2]


def test_reset_voids_every_handle() -> None:
    """Older generations neither ack nor change, also where the offset is leased again."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    assert leases.reset(0) == LeaseChange(1, 0, True, clear=True)
    leases.take(request(), NOW_MS, 1, columns(1))
    assert leases.ack(0, lease.lease_number, 0, lease.visible_at_ms, NOW_MS) == (False, None)
    assert ack(leases, 0, lease)


def test_a_reset_without_rows_clears_nothing() -> None:
    """Stored offsets of pull consumers cost no range deletion."""
    leases = QueueLeases(head=0)
    assert leases.reset(2) == LeaseChange(1, 2, True, clear=False)


def test_trim_drops_rows_below_and_lifts_the_head() -> None:
    """Rows below the smallest offset are counted; the head never stays below it."""
    leases = QueueLeases(head=0)
    leases.take(request(4), NOW_MS, 4, columns(4))
    change, dropped = leases.trim(2)
    assert dropped == 2
    assert change == LeaseChange(0, 4, False, (), (0, 1))
    change, dropped = leases.trim(9)
    assert (change, dropped, leases.cursor()) == (LeaseChange(0, 9, True, (), (2, 3)), 2, 9)
    assert leases.trim(9) == (None, 0)


def test_a_forwarded_message_is_removed_with_a_valid_handle_only() -> None:
    """The dead-letter RPC takes the row away once; a repeat finds it consumed."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    assert leases.remove(0, 9, 0, NOW_MS) == (None, None)
    assert leases.remove(0, 1, 0, NOW_MS) == (lease, LeaseChange(0, 1, False, (), (0,)))
    assert leases.remove(0, 1, 0, NOW_MS) == (None, None)
    assert leases.is_consumed(0)


def test_indexes_stay_as_small_as_the_rows() -> None:
    """A stuck message and a long flow behind it leave no trace of what was acked."""
    leases = QueueLeases(head=0)
    leases.take(request(1), NOW_MS, 1, columns(1))
    for first in range(1, 20_001, 32):
        taken = leases.take(request(), NOW_MS, first + 32, columns(32, base=first))
        for offset, lease in taken.leases:
            assert ack(leases, offset, lease)
    assert leases.cursor() == 0
    assert len(leases._offsets) < 3_000
    assert leases._deadlines._offset_count < 3_000


def test_a_gap_between_head_and_columns_is_a_bug_of_the_caller() -> None:
    """Messages that nobody looked at are never passed over."""
    leases = QueueLeases(head=0)
    with pytest.raises(AssertionError, match="gap"):
        leases.take(request(), NOW_MS, 5, columns(3, base=2))


def test_head_passes_over_offsets_that_hold_no_message() -> None:
    """Offsets that a repair of the log gave up are a run without a selected message: consumed."""
    leases = QueueLeases(head=2)
    runs = [Columns(2, 5, (), (), ()), *columns(2, base=7)]
    taken = leases.take(request(), NOW_MS, 9, runs)
    assert offsets(taken.leases) == [7, 8]
    assert (leases.head, leases.cursor()) == (9, 7)


def test_merged_changes_have_the_effect_of_all() -> None:
    """One section for many acks: a row put and then deleted is only deleted."""
    leases = QueueLeases(head=0)
    taken = leases.take(request(), NOW_MS, 3, columns(3))
    assert taken.change is not None
    changes = [taken.change]
    for offset, lease in list(taken.leases)[:2]:
        _, change = leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, NOW_MS)
        assert change is not None
        changes.append(change)
    merged = merge_changes(changes)
    assert merged == LeaseChange(0, 3, True, (taken.leases[2],), (0, 1))
    reset = leases.reset(9)
    assert merge_changes([*changes, reset]) == LeaseChange(1, 9, True, (), (), True)


def test_a_change_too_long_for_one_section_takes_several() -> None:
    """Section counts are 16 bits; only the first of several sections may clear."""
    change = LeaseChange(1, 70_000, True, (), tuple(range(70_000)), True)
    _, sections = decode_leases(encode_leases(NOW_MS, [(1, 2, 3, change)]))
    assert [len(section.deletes) for section in sections] == [65_535, 4_465]
    assert [section.clear for section in sections] == [True, False]
    assert all(section.head == 70_000 for section in sections)


def test_what_a_lost_broker_took_last_is_visible_again() -> None:
    """Its auto-renewed leases of the last moments only, and once; other brokers' stay."""
    leases = QueueLeases(head=0)
    taken_at_ms = {0: NOW_MS, 1: NOW_MS + 500, 2: NOW_MS + 500, 3: NOW_MS + 500}
    for offset, now_ms in taken_at_ms.items():
        broker = 8 if offset == 3 else 7
        leases.take(
            request(1, auto_renew=offset != 2, broker=broker), now_ms, 4, columns(1, base=offset)
        )
    change = leases.release_lost(HOLDER, {7: NOW_MS + 100}, NOW_MS + 1_000)
    assert change is not None
    assert [offset for offset, _ in change.puts] == [1]
    assert leases.release_lost(HOLDER, {7: NOW_MS + 100}, NOW_MS + 1_000) is None
    again = leases.take(request(), NOW_MS + 1_000, 4, ())
    assert [(offset, lease.attempts) for offset, lease in again.leases] == [(1, 1)]


def test_the_attempt_of_an_auto_renewed_lease_is_kept() -> None:
    """A pop whose answer was lost asks for what it took; others do not find it."""
    leases = QueueLeases(head=0)
    first = leases.take(request(2, auto_renew=True, attempt=9), NOW_MS, 3, columns(3))
    assert leases.of_attempt(9, NOW_MS + 1) == list(first.leases)
    assert leases.of_attempt(8, NOW_MS + 1) == []


def test_what_pops_took_is_found_by_their_attempts_and_forgotten_with_the_rows() -> None:
    """A broker asks again for what a pop took; what is acked costs no memory for it."""
    leases = QueueLeases(head=0)
    kept = [
        offset for offset, _ in leases.take(request(2, attempt=1), NOW_MS, 2, columns(2)).leases
    ]
    for number in range(2, 2_000):
        offset = leases.head
        run = Columns(offset, 1, None, [0], [10])
        ((_, lease),) = leases.take(request(1, attempt=number), NOW_MS, offset + 1, [run]).leases
        done, _ = leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, NOW_MS)
        assert done
        assert leases.of_attempt(number, NOW_MS) == []
    assert [offset for offset, _ in leases.of_attempt(1, NOW_MS)] == kept
    assert leases.of_attempt(1, LATER_MS) == []
    assert len(leases._attempts._offsets) < 300
