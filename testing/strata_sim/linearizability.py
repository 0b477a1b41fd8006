"""Is a history of concurrent operations linearizable?

Wing and Gong's search with Lowe's memory of configurations that led nowhere: choose an operation
that may come first, apply it to the model and continue; undo it when that fails. An operation
without an answer may have happened at any time after its call, or never.

It knows models, not systems: the recorder of a history defines the meaning of its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

State = Hashable
Step = Callable[[State, Any, Any], tuple[bool, State]]
"""(state, input, output) -> (could the output be this one, state afterwards).

The output of an operation without an answer is `UNKNOWN`: every output fits.
"""

UNKNOWN = object()
"""Output of an operation whose answer never came."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call and its answer.

    Attributes:
        input: what was asked.
        output: what was answered; `UNKNOWN`: nothing.
        called_s, returned_s: when; an unanswered one has returned at infinity.
        client: who asked, for people.
    """

    input: Any
    output: Any
    called_s: float
    returned_s: float
    client: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """Effects of operations on a state.

    Attributes:
        initial: the state before all.
        step: see `Step`.
    """

    initial: State
    step: Step


@dataclass(slots=True)
class Verdict:
    """Result of a check.

    Attributes:
        linearizable: whether there is an order.
        order: the order; of a bad history the longest one that was possible.
        explored: configurations looked at.
    """

    linearizable: bool
    order: list[Operation] = field(default_factory=list)
    explored: int = 0


class _Event:
    """A call or a return in a doubly linked list of all, by time."""

    __slots__ = ("match", "next", "number", "operation", "previous")

    def __init__(self, operation: Operation, number: int) -> None:
        self.operation = operation
        self.number = number
        # The return of a call; None for a return.
        self.match: _Event | None = None
        self.previous: _Event | None = None
        self.next: _Event | None = None

    def unlink(self) -> None:
        """Take the event out of the list; it keeps its neighbours in mind."""
        if self.previous is not None:
            self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def relink(self) -> None:
        """Put it back; in the reverse order of `unlink`."""
        if self.previous is not None:
            self.previous.next = self
        if self.next is not None:
            self.next.previous = self


def check(model: Model, history: Sequence[Operation]) -> Verdict:
    """Search for an order of `history` that explains every answer."""
    head = _events(history)
    state: State = model.initial
    done = 0
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[_Event, State]] = []
    verdict = Verdict(linearizable=False)
    answered = sum(1 for operation in history if operation.output is not UNKNOWN)
    answered_done = 0
    event = head.next
    while answered_done < answered:
        # An unanswered operation has its return at the end, where the search may leave it out.
        if event is not None and event.match is not None:
            operation = event.operation
            possible, after = model.step(state, operation.input, operation.output)
            configuration = (done | 1 << event.number, after)
            if possible and configuration not in seen:
                seen.add(configuration)
                verdict.explored += 1
                stack.append((event, state))
                state = after
                done |= 1 << event.number
                answered_done += operation.output is not UNKNOWN
                event.unlink()
                event.match.unlink()
                if len(stack) > len(verdict.order):
                    verdict.order = [taken.operation for taken, _ in stack]
                event = head.next
            else:
                event = event.next
            continue
        if not stack:
            return verdict
        event, state = stack.pop()
        done &= ~(1 << event.number)
        answered_done -= event.operation.output is not UNKNOWN
        assert event.match is not None
        event.match.relink()
        event.relink()
        event = event.next
    verdict.linearizable = True
    verdict.order = [taken.operation for taken, _ in stack]
    return verdict


def _events(history: Sequence[Operation]) -> _Event:
    """Return the head of the list of events; a return before a call at the same time."""
    events: list[tuple[float, int, _Event]] = []
    for number, operation in enumerate(history):
        call, answer = _Event(operation, number), _Event(operation, number)
        call.match = answer
        returned_s = float("inf") if operation.output is UNKNOWN else operation.returned_s
        events.append((operation.called_s, 1, call))
        events.append((returned_s, 0, answer))
    events.sort(key=lambda each: each[:2])
    head = last = _Event(Operation(None, UNKNOWN, 0.0, 0.0), -1)
    for _, _, event in events:
        last.next, event.previous = event, last
        last = event
    return head


# Models -----------------------------------------------------------------------------------------


def register_step(state: State, asked: Any, answer: Any) -> tuple[bool, State]:
    """A register: ("write", value) answers None, ("read",) the value, ("cas", old, new) a bool."""
    match asked:
        case ("write", value):
            return True, value
        case ("read",):
            return answer is UNKNOWN or answer == state, state
        case ("cas", old, new):
            swapped = state == old
            return answer is UNKNOWN or answer == swapped, new if swapped else state
    raise ValueError(f"a register cannot {asked!r}")


def queue_step(state: State, asked: Any, answer: Any) -> tuple[bool, State]:
    """A queue's end: ("append", count) answers the base offset, ("next",) the next offset."""
    assert isinstance(state, int)
    match asked:
        case ("append", count):
            return answer is UNKNOWN or answer == state, state + count
        case ("next",):
            return answer is UNKNOWN or answer == state, state
    raise ValueError(f"a queue's end cannot {asked!r}")


def item_step(state: State, asked: Any, answer: Any) -> tuple[bool, State]:
    """An item of a key-value table: None, or (value, version).

    ("put", value) answers the version; ("get",) the item; ("cas", expected version, value) the
    version, 0 if it was another one; ("delete",) whether it was there.
    """
    assert state is None or isinstance(state, tuple)
    version = 0 if state is None else state[1]
    match asked:
        case ("put", new):
            return answer in (UNKNOWN, version + 1), (new, version + 1)
        case ("get",):
            return answer is UNKNOWN or answer == state, state
        case ("cas", expected, new):
            swaps = expected == version
            fits = answer in (UNKNOWN, version + 1 if swaps else 0)
            return fits, (new, version + 1) if swaps else state
        case ("delete",):
            return answer in (UNKNOWN, state is not None), None
    raise ValueError(f"an item cannot {asked!r}")


REGISTER = Model(None, register_step)
ITEM = Model(None, item_step)
"""One key of a key-value table."""
QUEUE = Model(0, queue_step)
