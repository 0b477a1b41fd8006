"""The checkers find what they are for: each is fed one bad history."""

from collections.abc import Callable

import pytest

from tests.e2e.history import CHECKS, History, Lease, check, skipped


def good() -> History:
    """Two message ids of one message group, sent, answered, delivered and acknowledged."""
    history = History()
    for number, message_id in enumerate(("m0", "m1")):
        history.attempt("t", message_id, b"body", message_group="g")
        history.answer(message_id, number)
        history.deliver("c", "t", message_id, b"body", queue=0, offset=number)
        history.acknowledge("c", message_id)
    return history


def test_good_history() -> None:
    """A history in which all went well has no violation."""
    assert check(good()) == []


def test_unanswered_send_may_appear_or_not() -> None:
    """A send without an answer is neither lost when missing nor a phantom when delivered."""
    history = good()
    history.attempt("t", "missing", b"body")
    history.attempt("t", "present", b"body")
    history.deliver("c", "t", "present", b"body", queue=1, offset=0)
    assert check(history) == []


def test_delivery_may_repeat_before_its_acknowledgement() -> None:
    """The same position may be delivered again, and to another consumer group."""
    history = History()
    history.attempt("t", "m", b"body")
    for group in ("c", "c", "d"):
        history.deliver(group, "t", "m", b"body", queue=0, offset=5)
    history.acknowledge("c", "m")
    history.deliver("d", "t", "m", b"body", queue=0, offset=5)
    assert check(history) == []


def test_delivery_under_way_during_the_acknowledgement() -> None:
    """A delivery that was asked for before the acknowledgement was answered may still arrive."""
    history = History()
    history.attempt("t", "m", b"body")
    since = history.mark()
    history.deliver("c", "t", "m", b"body", queue=0, offset=5, since=since)
    history.acknowledge("c", "m")
    history.deliver("c", "t", "m", b"body", queue=0, offset=5, since=since)
    assert check(history) == []


def lose(history: History) -> None:
    """Answer a send that never comes."""
    history.attempt("t", "gone", b"body")
    history.answer("gone", 2)


def invent(history: History) -> None:
    """Deliver what nobody sent."""
    history.deliver("c", "t", "nobody's", b"body", queue=0, offset=2)


def corrupt(history: History) -> None:
    """Deliver another body."""
    history.attempt("t", "m2", b"body")
    history.deliver("c", "t", "m2", b"b0dy", queue=0, offset=2)


def misroute(history: History) -> None:
    """Deliver from another topic."""
    history.attempt("t", "m2", b"body")
    history.deliver("c", "u", "m2", b"body", queue=0, offset=2)


def store_twice(history: History) -> None:
    """Deliver an unanswered send from two positions."""
    history.attempt("t", "m2", b"body")
    for offset in (2, 3):
        history.deliver("c", "t", "m2", b"body", queue=0, offset=offset)


def reuse(history: History) -> None:
    """Deliver another message from a position that was taken."""
    history.attempt("t", "m2", b"body")
    history.deliver("c", "t", "m2", b"body", queue=0, offset=1)


def move(history: History) -> None:
    """Deliver from another offset than was answered."""
    history.attempt("t", "m2", b"body")
    history.answer("m2", 2)
    history.deliver("c", "t", "m2", b"body", queue=0, offset=3)


def revive(history: History) -> None:
    """Deliver an acknowledged message again."""
    history.deliver("c", "t", "m0", b"body", queue=0, offset=0)


def disorder(history: History) -> None:
    """Store the later of two sends of a message group first."""
    for message_id, offset in (("m2", 8), ("m3", 7)):
        history.attempt("t", message_id, b"body", message_group="h")
        history.answer(message_id, offset)
    for message_id, offset in (("m3", 7), ("m2", 8)):
        history.deliver("c", "t", message_id, b"body", queue=0, offset=offset)


def scatter(history: History) -> None:
    """Store a message group in two queues."""
    for queue, message_id in enumerate(("m2", "m3")):
        history.attempt("t", message_id, b"body", message_group="h")
        history.answer(message_id, 9)
        history.deliver("c", "t", message_id, b"body", queue=queue, offset=9)


def overtake(history: History) -> None:
    """Deliver the later of two messages of a message group first."""
    for message_id, offset in (("m2", 7), ("m3", 8)):
        history.attempt("t", message_id, b"body", message_group="h")
        history.answer(message_id, offset)
    for message_id, offset in (("m3", 8), ("m2", 7)):
        history.deliver("c", "t", message_id, b"body", queue=0, offset=offset)


def grow(history: History, *queues: int, times: int = 1) -> None:
    """Store messages of a message group in these queues while the topic grows."""
    history.grown["t"] += times
    for offset, queue in enumerate(queues, 10):
        history.attempt("t", f"m{offset}", b"body", message_group="h")
        history.answer(f"m{offset}", offset)
        history.deliver("c", "t", f"m{offset}", b"body", queue=queue, offset=offset)


def go_back(history: History) -> None:
    """Store a message in a queue that its message group has left when the topic grew."""
    grow(history, 1, 5, 1)


def go_back_out_of_order(history: History) -> None:
    """Store a later message before those of the queue that the topic's growth leads back to."""
    grow(history, 1, 5, times=2)
    history.attempt("t", "m9", b"body", message_group="h")
    history.answer("m9", 9)
    history.deliver("another", "t", "m9", b"body", queue=1, offset=9)


def overtake_in_another_queue(history: History) -> None:
    """Deliver from the new queue before the old one is empty."""
    history.grown["t"] += 1
    for message_id in ("m2", "m3"):
        history.attempt("t", message_id, b"body", message_group="h")
        history.answer(message_id, 9)
    for queue, message_id in ((1, "m3"), (0, "m2")):
        history.deliver("c", "t", message_id, b"body", queue=queue, offset=9)


def share(history: History) -> None:
    """Deliver a message to a second receiver while the first one holds it."""
    history.attempt("t", "m2", b"body")
    for attempt, called_s in enumerate((10, 18), 1):
        lease = Lease(called_s, called_s + 1, 10)
        history.deliver("c", "t", "m2", b"body", 0, 2, lease=lease, attempt=attempt)


def test_a_message_group_may_come_back_when_its_topic_grows_again() -> None:
    """A hash modulo 8 may be what it is modulo 6, and something else modulo 7."""
    history = History()
    grow(history, 2, 0, 2, times=2)
    assert check(history) == []


def test_a_late_answer_is_no_second_holder() -> None:
    """A lease whose answer took longer than itself ended before the next one began."""
    history = History()
    history.attempt("t", "m2", b"body")
    history.answer("m2", 2)
    for attempt, called_s, received_s in ((2, 18, 19), (1, 5, 20)):
        lease = Lease(called_s, received_s, 10)
        history.deliver("c", "t", "m2", b"body", 0, 2, lease=lease, attempt=attempt)
    assert check(history) == []


BAD: list[tuple[Callable[[History], None], str]] = [
    (lose, "lost: gone"),
    (invent, "phantom: nobody's"),
    (corrupt, "body changed: m2"),
    (misroute, "wrong topic: m2"),
    (store_twice, "stored twice: m2"),
    (reuse, "offset reused: ('t', 0, 1)"),
    (move, "moved: m2"),
    (revive, "came again after its acknowledgement: m0"),
    (disorder, "out of order"),
    (scatter, "out of order"),
    (overtake, "overtaken: m2"),
    (go_back, "out of order"),
    (go_back_out_of_order, "out of order"),
    (overtake_in_another_queue, "overtaken: m2"),
    (share, "two holders: m2"),
]


@pytest.mark.parametrize(("spoil", "expected"), BAD)
def test_bad_history(spoil: Callable[[History], None], expected: str) -> None:
    """Each kind of violation is found, alone, and named."""
    history = good()
    spoil(history)
    [violation] = check(history)
    assert violation.startswith(expected)


def test_skipped_by_a_group() -> None:
    """A stored message that one consumer group never got is named, for that group only."""
    history = good()
    history.deliver("d", "t", "m0", b"body", queue=0, offset=0)
    assert skipped(history, "d", "t") == ["m1"]
    assert skipped(history, "c", "t") == []


def test_each_check_is_exercised() -> None:
    """Every check finds something in at least one bad history."""
    finding = set()
    for spoil, _ in BAD:
        history = good()
        spoil(history)
        finding |= {find for find in CHECKS if list(find(history))}
    assert finding == set(CHECKS)


def test_a_message_group_may_leave_its_queue_when_the_topic_grows() -> None:
    """Once for every growth, in order."""
    history = History()
    grow(history, 1, 1, 5, 5, 13, times=2)
    assert check(history) == []
