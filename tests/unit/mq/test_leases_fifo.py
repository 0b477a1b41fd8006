"""`QueueLeases` of ordered consumer groups: what waits for what."""

from __future__ import annotations

from dataclasses import replace

from strata_mq.leases.queue_leases import QueueLeases
from tests.unit.mq.lease_examples import (
    HOLDER,
    LATER_MS,
    NOW_MS,
    ack,
    columns,
    offsets,
    request,
)


def test_fifo_gives_a_message_group_only_after_its_earlier_messages() -> None:
    """Group 7 is locked by its first message; group 8 flows; the rest is blocked, not lost."""
    leases = QueueLeases(head=0)
    first = leases.take(request(1, fifo=True), NOW_MS, 4, columns(4, groups=[7, 7, 8, 7]))
    assert offsets(first.leases) == [0]
    second = leases.take(request(fifo=True), NOW_MS, 4, columns(4, groups=[7, 7, 8, 7]))
    assert offsets(second.leases) == [2]
    assert (leases.head, leases.blocked, leases.in_flight) == (4, 2, 2)
    assert not leases.peek_ready(NOW_MS, 4)
    assert ack(leases, 0, first.leases[0][1])
    assert leases.peek_ready(NOW_MS, 4)
    third = leases.take(request(fifo=True), NOW_MS, 4, ())
    assert offsets(third.leases) == [1, 3]


def test_fifo_gives_several_messages_of_a_group_in_one_batch_in_order() -> None:
    """A redelivery takes along what was delivered with it and not acked, and nothing new."""
    leases = QueueLeases(head=0)
    runs = columns(6, groups=[7] * 6)
    taken = dict(leases.take(request(3, fifo=True), NOW_MS, 6, runs).leases)
    assert ack(leases, 1, taken[1])
    again = leases.take(request(fifo=True), LATER_MS, 6, runs)
    assert [(offset, lease.attempts) for offset, lease in again.leases] == [(0, 2), (2, 2)]
    for offset, lease in again.leases:
        assert not leases.take(request(fifo=True), LATER_MS + 1, 6, runs).leases
        assert leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, LATER_MS)[0]
    after = leases.take(request(fifo=True), LATER_MS + 1, 6, runs)
    assert [(offset, lease.attempts) for offset, lease in after.leases] == [(3, 1), (4, 1), (5, 1)]


def test_fifo_gives_no_new_message_while_an_older_one_is_given_again_and_again() -> None:
    """A simple consumer that never acks the first of three sees no other message, ever."""
    leases = QueueLeases(head=0)
    runs = columns(9, groups=[7] * 9)
    now_ms, seen = NOW_MS, set()
    for _ in range(5):
        taken = leases.take(request(3, fifo=True), now_ms, 9, runs).leases
        seen.update(offsets(list(taken)))
        for offset, lease in taken:
            if offset:
                assert leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, now_ms)[0]
        now_ms += 100_000
    assert seen == {0, 1, 2}


def test_fifo_messages_without_a_group_are_one_group() -> None:
    """Hash 0 locks like any other message group."""
    leases = QueueLeases(head=0)
    assert offsets(leases.take(request(1, fifo=True), NOW_MS, 2, columns(2)).leases) == [0]
    assert leases.take(request(fifo=True), NOW_MS, 2, columns(2)).leases == []
    assert leases.blocked == 1


def test_the_same_attempt_gets_the_same_leases_until_they_end() -> None:
    """A FIFO pop repeated with its attempt id gives what is left of the first answer."""
    leases = QueueLeases(head=0)
    pop = request(2, fifo=True, attempt=42)
    first = leases.take(pop, NOW_MS, 3, columns(3))
    repeat = leases.take(pop, NOW_MS + 5, 3, columns(3))
    assert repeat.repeated
    assert repeat.change is None
    assert list(repeat.leases) == list(first.leases)
    assert ack(leases, 0, first.leases[0][1])
    assert offsets(leases.take(pop, NOW_MS + 6, 3, ()).leases) == [1]
    after = leases.take(pop, LATER_MS, 3, columns(3))
    assert not after.repeated
    assert [(offset, lease.attempts) for offset, lease in after.leases] == [(1, 2)]


def test_an_exhausted_message_holds_its_group_until_it_is_dropped() -> None:
    """FIFO order survives the dead-letter copy: the next message waits for it."""
    leases = QueueLeases(head=0)
    leases.take(request(1, fifo=True, max_attempts=1), NOW_MS, 2, columns(2))
    leases.expire(LATER_MS)
    assert leases.take(request(fifo=True), LATER_MS, 2, columns(2)).leases == []
    leases.drop_exhausted(0)
    assert offsets(leases.take(request(fifo=True), LATER_MS, 2, ()).leases) == [1]


def test_one_per_message_group_gives_the_next_message_only_after_the_ack() -> None:
    """Two message groups give one message each; redelivery and the next one keep that limit."""
    leases = QueueLeases(head=0)
    ask = request(fifo=True, one_per_message_group=True)
    first = leases.take(ask, NOW_MS, 5, columns(5, groups=[7, 7, 8, 7, 8])).leases
    assert offsets(list(first)) == [0, 2]
    assert offsets(list(leases.take(ask, NOW_MS, 5, ()).leases)) == []
    assert ack(leases, *first[0])
    assert offsets(list(leases.take(ask, NOW_MS + 2, 5, ()).leases)) == [1]
    again = leases.take(ask, LATER_MS + 2, 5, ()).leases
    assert offsets(list(again)) == [1, 2]
    assert [lease.attempts for _, lease in again] == [2, 2]


def test_an_attempt_goes_on_through_another_broker() -> None:
    """Its leases are that broker's then: what the first one says of them is of no lease any more.

    Its client works on what the other broker gave it, and must not lose it to somebody else.
    """
    leases = QueueLeases(head=0)
    runs = columns(3, groups=[7, 7, 7])
    first = leases.take(request(2, fifo=True, attempt=42, broker=1), NOW_MS, 3, runs)
    again = leases.take(request(2, fifo=True, attempt=42, broker=2), NOW_MS + 5, 3, runs)
    assert again.repeated
    assert offsets(list(again.leases)) == [0, 1]
    assert again.change is not None
    assert list(again.change.puts) == list(again.leases)
    for (offset, before), (_, after) in zip(first.leases, again.leases, strict=True):
        assert (after.broker, after.attempts, after.taken_at_ms) == (2, 1, NOW_MS + 5)
        assert leases.release_undelivered(offset, before.lease_number, 0, NOW_MS + 6) is None
        assert not ack(leases, offset, before, NOW_MS + 6)
        assert ack(leases, offset, after, NOW_MS + 6)
    assert leases.in_flight == 0


def test_the_life_of_an_attempt_begins_again_with_the_broker_that_gives_it() -> None:
    """Else its loss could not be told from that of the first one."""
    leases = QueueLeases(head=0, auto_renew_limit_ms=1_000)
    pop = request(1, fifo=True, auto_renew=True, attempt=42, broker=1)
    leases.take(pop, NOW_MS, 1, columns(1))
    leases.take(replace(pop, broker=2), NOW_MS + 600, 1, columns(1))
    assert leases.release_lost(HOLDER, {1: NOW_MS - 9}, NOW_MS + 700) is None
    assert leases.expire(NOW_MS + 1_100) == (None, [])
    assert leases.next_deadline_ms() == NOW_MS + 1_600
    assert leases.release_lost(HOLDER, {2: NOW_MS + 500}, NOW_MS + 1_200) is not None
