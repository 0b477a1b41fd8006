"""Takes around the end of a leader, as the next one sees them (rules 25, 36)."""

from __future__ import annotations

from strata_mq.leases import Lease, LeaseState
from strata_runtime.stalls import OwnStalls
from strata_storage.leading.brokers import Brokers, LostBroker
from strata_storage.leading.takeovers import Takeover
from tests.unit.storage.serving_leader import lease

STAMP_MS, SINCE_S = 1_700_000_000_000, 100.0
DEAD, ALIVE, NOBODY = 0xD, 0xA, 0
SETTLED_MS = 18_000


def brokers() -> Brokers:
    """Return what a node knows that only heard of `ALIVE` since it started."""
    known = Brokers(OwnStalls(0.1), absence_s=3.0, answer_s=12.0)
    known.heard(ALIVE)
    return known


def taken(broker: int, at_ms: int, *, auto_renewed: bool = True) -> Lease:
    row = lease(LeaseState.LEASED, 0, attempts=1)
    return row._replace(holder=5, auto_renewed=auto_renewed, broker=broker, taken_at_ms=at_ms)


def takeover(*leases: Lease) -> Takeover:
    """Return one that saw all leases of before."""
    new = Takeover(STAMP_MS, SINCE_S)
    for each in leases:
        new.seen(each)
    new.seen_all()
    return new


def test_what_a_broker_took_last_that_died_with_the_leader_is_lost() -> None:
    """Its answer may not have left; brokers that live see to their answers themselves."""
    new = takeover(taken(DEAD, STAMP_MS), taken(ALIVE, STAMP_MS), taken(NOBODY, STAMP_MS))
    assert new.lost(brokers(), 115.0) == {LostBroker(DEAD, 82.0): STAMP_MS - SETTLED_MS}


def test_what_was_taken_long_before_the_last_stamp_was_delivered() -> None:
    """Its client is at work on it: a change of the leader gives it to nobody else."""
    early = takeover(taken(DEAD, STAMP_MS - SETTLED_MS - 1))
    assert early.lost(brokers(), 115.0) == {}
    late = takeover(taken(DEAD, STAMP_MS - SETTLED_MS))
    assert late.lost(brokers(), 115.0).keys() == {LostBroker(DEAD, 82.0)}


def test_leases_with_an_end_are_left_to_their_end() -> None:
    """They are no concern of a new leader; nor are takes of its own term."""
    plain = taken(DEAD, STAMP_MS, auto_renewed=False)
    assert takeover(plain, taken(DEAD, STAMP_MS + 1)).lost(brokers(), 115.0) == {}


def test_nothing_is_lost_before_all_leases_were_seen() -> None:
    """Else a loss would be over before the last sets were searched."""
    new = Takeover(STAMP_MS, SINCE_S)
    new.seen(taken(DEAD, STAMP_MS))
    known = brokers()
    assert new.lost(known, 115.0) == {}
    new.seen_all()
    assert len(new.lost(known, 300.0)) == 1


def test_a_broker_that_comes_back_is_not_lost() -> None:
    """A stream or a report of it is enough; after a while the others are forgotten, too."""
    new, known = takeover(taken(DEAD, STAMP_MS), taken(0xE, STAMP_MS)), brokers()
    assert {lost.mark for lost in new.lost(known, 115.0)} == {DEAD, 0xE}
    known.watches(0xE)
    assert {lost.mark for lost in new.lost(known, 116.0)} == {DEAD}
    assert len(new.lost(known, 174.9)) == 1
    assert new.lost(known, 175.0) == {}


def test_the_time_is_written_once_takes_are_settled() -> None:
    """Nothing else may be written for hours; the next leader judges by the last stamp."""
    new, known = takeover(), brokers()
    took_ms = STAMP_MS + 1_000
    assert not new.wants_stamp(known, took_ms, STAMP_MS)
    new.took(took_ms)
    assert not new.wants_stamp(known, took_ms + SETTLED_MS, took_ms)
    assert new.wants_stamp(known, took_ms + SETTLED_MS + 1, took_ms)
    # Until it is proposed.
    assert new.wants_stamp(known, took_ms + SETTLED_MS + 2, took_ms)
    new.stamped()
    assert not new.wants_stamp(known, took_ms + SETTLED_MS + 3, took_ms)


def test_the_time_is_not_written_where_something_else_was() -> None:
    """An ack or an append in between says as much."""
    new, known = takeover(taken(DEAD, STAMP_MS)), brokers()
    assert not new.wants_stamp(known, STAMP_MS + 60_000, STAMP_MS + SETTLED_MS + 1)
    assert not new.wants_stamp(known, STAMP_MS + 60_000, STAMP_MS)
