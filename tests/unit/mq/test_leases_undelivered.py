"""Leases on messages that nobody was given: they are no attempts, however they end (rule 36)."""

from __future__ import annotations

import pytest

from strata_mq.leases.queue_leases import LeaseState, QueueLeases
from tests.unit.mq.lease_examples import HOLDER, LATER_MS, NOW_MS, ack, columns, request

ONLY = request(max_attempts=1)
BROKER = 7


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("holder_died", [False, True])
def test_a_release_that_comes_late_takes_the_attempt_back(*, fifo: bool, holder_died: bool) -> None:
    """The lease has ended, its message was to be a dead letter: it is delivered all the same."""
    leases = QueueLeases(head=0)
    only = request(max_attempts=1, auto_renew=holder_died, fifo=fifo)
    ((_, lease),) = leases.take(only, NOW_MS, 1, columns(1)).leases
    if holder_died:
        assert leases.release_holder(HOLDER, LATER_MS) is not None
    _, exhausted = leases.expire(LATER_MS)
    assert [offset for offset, _ in exhausted] == [0]
    assert leases.release_undelivered(0, lease.lease_number, 0, LATER_MS + 1) is not None
    assert leases.exhausted() == []
    assert leases.drop_exhausted(0) is None
    ((_, again),) = leases.take(only, LATER_MS + 2, 1, ()).leases
    assert again.attempts == 1
    assert leases.release_undelivered(0, lease.lease_number, 0, LATER_MS + 3) is None
    assert ack(leases, 0, again, LATER_MS + 3)


def test_what_runs_out_after_its_broker_was_lost_was_no_attempt() -> None:
    """Messages that the broker took long before count as delivered; so do another broker's."""
    lost: dict[int, int] = {}
    leases = QueueLeases(head=0, lost=lost)
    for offset, (broker, taken_at_ms) in enumerate(
        [(BROKER, NOW_MS), (BROKER, NOW_MS + 500), (8, NOW_MS + 500)]
    ):
        leases.take(request(1, broker=broker), taken_at_ms, 3, columns(1, base=offset))
    lost[BROKER] = NOW_MS + 100
    taken = leases.take(request(), LATER_MS + 500, 3, ())
    attempts = [(offset, lease.attempts) for offset, lease in taken.leases]
    assert attempts == [(0, 2), (1, 1), (2, 2)]


@pytest.mark.parametrize("runs_out", [False, True])
def test_a_lost_brokers_attempt_is_taken_back_once(*, runs_out: bool) -> None:
    """The broker was only cut off and gives its lease back: an earlier delivery stays counted."""
    lost: dict[int, int] = {}
    leases = QueueLeases(head=0, lost=lost)
    ((_, first),) = leases.take(request(broker=8), NOW_MS, 1, columns(1)).leases
    leases.change_invisible(0, first.lease_number, 0, first.visible_at_ms, 0, NOW_MS + 1)
    again = request(broker=BROKER, auto_renew=not runs_out)
    ((_, second),) = leases.take(again, NOW_MS + 2, 1, ()).leases
    lost[BROKER] = NOW_MS
    if runs_out:
        change, _ = leases.expire(LATER_MS + 2)
    else:
        change = leases.release_lost(HOLDER, lost, LATER_MS + 2)
    assert change is not None
    ((_, ended),) = change.puts
    assert (ended.attempts, ended.lease_number) == (1, second.lease_number + 1)
    assert leases.release_undelivered(0, second.lease_number, 0, LATER_MS + 3) is None
    ((_, third),) = leases.take(request(), LATER_MS + 4, 1, ()).leases
    assert (third.attempts, third.lease_number) == (2, second.lease_number + 2)


def test_what_a_client_changed_was_given_to_it() -> None:
    """Its broker may be lost afterwards: the attempt counts."""
    lost: dict[int, int] = {}
    leases = QueueLeases(head=0, lost=lost)
    ((_, lease),) = leases.take(request(broker=BROKER), NOW_MS, 1, columns(1)).leases
    leases.change_invisible(0, lease.lease_number, 0, lease.visible_at_ms, 1_000, NOW_MS + 1)
    lost[BROKER] = NOW_MS
    ((_, again),) = leases.take(request(), LATER_MS, 1, ()).leases
    assert again.attempts == 2


def test_what_cannot_be_read_is_put_off_and_loses_no_attempt() -> None:
    """Its holder does not keep it, and does not know of it."""
    leases = QueueLeases(head=0)
    only = request(max_attempts=1, auto_renew=True)
    ((_, lease),) = leases.take(only, NOW_MS, 1, columns(1)).leases
    change = leases.reschedule_undelivered(0, lease.lease_number, 0, LATER_MS)
    assert change is not None
    assert [(row.state, row.attempts) for _, row in change.puts] == [(LeaseState.LEASED, 0)]
    assert leases.holders() == ()
    assert leases.take(only, LATER_MS - 1, 1, ()).leases == ()
    ((_, again),) = leases.take(only, LATER_MS, 1, ()).leases
    assert again.attempts == 1
    assert leases.reschedule_undelivered(0, lease.lease_number, 0, LATER_MS) is None


def test_a_dead_holder_keeps_what_may_be_given_back_yet() -> None:
    """A message that was taken just before is left for the release that may be on its way."""
    leases = QueueLeases(head=0)
    for offset in range(2):
        held = request(1, auto_renew=True)
        leases.take(held, NOW_MS + 100 * offset, 2, columns(1, base=offset))
    change = leases.release_holder(HOLDER, NOW_MS + 200, NOW_MS + 100)
    assert change is not None
    assert [offset for offset, _ in change.puts] == [0]
    assert leases.holders() == (HOLDER,)


@pytest.mark.parametrize("invisible_ms", [0, 5_000])
def test_a_repeated_change_whose_row_is_gone_is_answered_as_the_first(invisible_ms: int) -> None:
    """It was delivered once more and acked, or went to the dead letters."""
    leases = QueueLeases(head=0)
    ((_, lease),) = leases.take(request(), NOW_MS, 1, columns(1)).leases
    handle = (0, lease.lease_number, 0, lease.visible_at_ms)
    changed, _ = leases.change_invisible(*handle, invisible_ms, NOW_MS + 1)
    assert changed is not None
    ((_, again),) = leases.take(request(), NOW_MS + 6_000, 1, ()).leases
    known = leases.changed_before(*handle, invisible_ms, NOW_MS + 6_001)
    assert known is not None
    assert known.lease_number == changed.lease_number
    assert ack(leases, 0, again, NOW_MS + 6_002)
    gone = leases.changed_before(*handle, invisible_ms, NOW_MS + 6_003)
    assert gone is not None
    assert gone.lease_number == changed.lease_number
    assert leases.changed_before(1, 1, 0, LATER_MS, invisible_ms, NOW_MS) is None, "never leased"
