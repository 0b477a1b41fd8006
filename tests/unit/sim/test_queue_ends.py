"""Reads of queue ends are judged beside the appends that deliveries show."""

from __future__ import annotations

from strata_sim.history import History
from strata_sim.queue_ends import QueueEnds


def two_sends() -> tuple[History, QueueEnds]:
    """Two messages, sent one after the other into one queue."""
    history, ends = History(), QueueEnds()
    for offset, message_id in enumerate(("a", "b")):
        history.attempt("t", message_id, b"")
        ends.sent(message_id, 10.0 * offset, "c")
        ends.answered(message_id, 10.0 * offset + 5)
        history.deliver("g", "t", message_id, b"", 0, offset)
    return history, ends


def test_fresh_reads_are_fine() -> None:
    """A read between two appends shows the first, one beside the second shows either."""
    history, ends = two_sends()
    ends.read("t", {0: 1}, 6, 7)
    ends.read("t", {0: 1}, 11, 12)
    ends.read("t", {0: 2}, 12, 13)
    assert not list(ends.violations(history))


def test_stale_read_is_found() -> None:
    """A read after an append that does not show it is found."""
    history, ends = two_sends()
    ends.read("t", {0: 1}, 16, 17)
    assert len(list(ends.violations(history))) == 1


def test_unanswered_append_may_be_late() -> None:
    """A message whose send was never answered may show at any time after it."""
    history, ends = two_sends()
    history.attempt("t", "lost", b"")
    ends.sent("lost", 0.0, "c")
    history.deliver("g", "t", "lost", b"", 0, 2)
    ends.read("t", {0: 2}, 30, 31)
    ends.read("t", {0: 3}, 40, 41)
    assert not list(ends.violations(history))
