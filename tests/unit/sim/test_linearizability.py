"""The linearizability checker against histories whose verdict is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from strata_sim.linearizability import QUEUE, REGISTER, UNKNOWN, Model, Operation, check

LOST = float("inf")


def op(asked: tuple[object, ...], answer: object, called_s: float, returned_s: float) -> Operation:
    """Return an operation."""
    return Operation(asked, answer, called_s, returned_s)


GOOD = {
    "nothing happened": [],
    "one after the other": [op(("write", 1), None, 0, 1), op(("read",), 1, 2, 3)],
    "a read beside a write sees the old value": [
        op(("write", 1), None, 0, 10),
        op(("read",), None, 1, 2),
    ],
    "a read beside a write sees the new value, a later one too": [
        op(("write", 1), None, 0, 10),
        op(("read",), 1, 1, 2),
        op(("read",), 1, 3, 4),
    ],
    "an unanswered write may be seen": [
        op(("write", 1), UNKNOWN, 0, LOST),
        op(("read",), 1, 5, 6),
    ],
    "an unanswered write may be seen late": [
        op(("write", 1), UNKNOWN, 0, LOST),
        op(("read",), None, 5, 6),
        op(("read",), 1, 7, 8),
    ],
    "one of two swaps wins": [
        op(("write", 1), None, 0, 1),
        op(("cas", 1, 2), True, 2, 9),
        op(("cas", 1, 3), False, 2, 9),
        op(("read",), 2, 10, 11),
    ],
}

BAD = {
    "a read of nothing after a write": [op(("write", 1), None, 0, 1), op(("read",), None, 2, 3)],
    "a value nobody wrote": [op(("write", 1), None, 0, 1), op(("read",), 7, 2, 3)],
    "new, then old": [
        op(("write", 1), None, 0, 10),
        op(("read",), 1, 1, 2),
        op(("read",), None, 3, 4),
    ],
    "an unanswered write that comes and goes": [
        op(("write", 1), UNKNOWN, 0, LOST),
        op(("read",), 1, 5, 6),
        op(("read",), None, 7, 8),
    ],
    "two swaps win": [
        op(("write", 1), None, 0, 1),
        op(("cas", 1, 2), True, 2, 9),
        op(("cas", 1, 3), True, 2, 9),
    ],
    "seen before it was asked": [op(("read",), 1, 0, 1), op(("write", 1), None, 2, 3)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories(name: str) -> None:
    """A linearizable history is found so, and the order explains it."""
    verdict = check(REGISTER, GOOD[name])
    assert verdict.linearizable
    assert explains(REGISTER, verdict.order)


@pytest.mark.parametrize("name", BAD)
def test_bad_histories(name: str) -> None:
    """A history that is not linearizable is found so."""
    assert not check(REGISTER, BAD[name]).linearizable


def test_offset_given_twice() -> None:
    """Two appends that got the same offset are no queue."""
    history = [op(("append", 2), 0, 0, 5), op(("append", 1), 0, 1, 6)]
    assert not check(QUEUE, history).linearizable
    assert check(QUEUE, [history[0], op(("append", 1), 2, 1, 6)]).linearizable


def test_stale_end() -> None:
    """A queue's end that is read after an append and does not show it is stale."""
    history = [op(("append", 1), 0, 0, 1), op(("next",), 0, 2, 3)]
    assert not check(QUEUE, history).linearizable


def test_agrees_with_every_order() -> None:
    """On small random histories the search finds what trying every order finds."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    verdicts = []
    for _ in range(600):
        history = random_history(chance)
        verdict = check(REGISTER, history)
        assert verdict.linearizable == by_every_order(REGISTER, history), history
        verdicts.append(verdict.linearizable)
    assert any(verdicts)
    assert not all(verdicts)


def test_long_history_is_quick() -> None:
    """Thousands of operations of a few clients are checked without a search of everything."""
    chance = random.Random(5)
    state, history, now_s = 0, [], 0.0
    for _ in range(3_000):
        count = chance.randrange(1, 5)
        history.append(op(("append", count), state, now_s, now_s + 1.5))
        state += count
        now_s += 1
    verdict = check(QUEUE, history)
    assert verdict.linearizable
    assert verdict.explored < 10_000


def explains(model: Model, order: Sequence[Operation]) -> bool:
    """Whether the model, taken through an order, gives every answer."""
    state = model.initial
    for operation in order:
        possible, state = model.step(state, operation.input, operation.output)
        if not possible:
            return False
    return True


def by_every_order(model: Model, history: Sequence[Operation]) -> bool:
    """Try every subset of the unanswered operations and every order."""
    answered = [each for each in history if each.output is not UNKNOWN]
    lost = [each for each in history if each.output is UNKNOWN]
    for count in range(len(lost) + 1):
        for taken in itertools.combinations(lost, count):
            for order in itertools.permutations([*answered, *taken]):
                if keeps_time(order) and explains(model, order):
                    return True
    return False


def keeps_time(order: Sequence[Operation]) -> bool:
    """Whether nothing stands before what had ended when it was called."""
    return all(
        first.called_s <= second.returned_s for first, second in itertools.combinations(order, 2)
    )


def random_history(chance: random.Random) -> list[Operation]:
    """Return up to six operations with answers that may be wrong."""
    history = []
    for _ in range(chance.randrange(2, 7)):
        called_s = chance.uniform(0, 10)
        returned_s = called_s + chance.uniform(0.1, 5)
        asked: tuple[object, ...]
        answer: object
        asked, answer = chance.choice(
            [
                (("write", chance.randrange(3)), None),
                (("read",), chance.choice([None, 0, 1, 2])),
                (("cas", chance.randrange(3), chance.randrange(3)), chance.random() < 0.5),
            ]
        )
        if chance.random() < 0.2:
            answer, returned_s = UNKNOWN, LOST
        history.append(Operation(asked, answer, called_s, returned_s))
    return history
