"""Brokers that are lost: what they took last may never have been delivered."""

from __future__ import annotations

from strata_runtime.stalls import OwnStalls
from strata_storage.leading.brokers import Brokers, LostBroker

BROKER = 0xABCD_0007


def test_a_broker_is_lost_some_time_after_its_last_stream() -> None:
    """A stream that is opened anew, or a second one, keeps it."""
    brokers = Brokers(OwnStalls(0.1), absence_s=3.0, answer_s=12.0)
    brokers.watches(BROKER)
    brokers.watches(BROKER)
    brokers.unwatched(BROKER, 100.0)
    assert brokers.lost(110.0) == []
    brokers.unwatched(BROKER, 110.0)
    assert brokers.lost(112.9) == []
    assert brokers.lost(113.0) == [LostBroker(7, 98.0)]
    brokers.watches(BROKER)
    assert brokers.lost(120.0) == []


def test_a_broker_that_says_goodbye_has_delivered_nearly_everything() -> None:
    """The end of its stream, later, does not make it lost with all of its last seconds."""
    brokers = Brokers(OwnStalls(0.1), goodbye_s=0.5)
    brokers.watches(BROKER)
    brokers.leaves(BROKER, 100.0)
    brokers.unwatched(BROKER, 100.1)
    assert brokers.lost(104.0) == [LostBroker(7, 99.5)]


def test_lost_brokers_are_forgotten() -> None:
    """After a while, and the oldest first when there are too many."""
    brokers = Brokers(OwnStalls(0.1), absence_s=0.0, remembered_s=60.0, max_remembered=2)
    for number in range(1, 4):
        brokers.watches(number)
        brokers.unwatched(number, float(number))
    assert [lost.mark for lost in brokers.lost(10.0)] == [2, 3]
    assert [lost.mark for lost in brokers.lost(62.5)] == [3]
    brokers.unwatched(99, 63.0)
    assert [lost.mark for lost in brokers.lost(63.0)] == []
