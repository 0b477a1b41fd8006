"""Evaluation of a SQL92 filter in pieces; each piece announces its cost first.

An expression within all limits can read a property of many KB thousands of times: that takes a
fraction of a second for one message and blocks the event loop. Here the caller may pause between
pieces. The outcome equals that of `compiler`, errors included: AND and OR evaluate their operands
from left to right and stop when the result is decided.

A *step* is one node of the tree, or 64 characters of a text that it looks at: about 0.1 us, up to
four times as much for texts that are read as numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from strata_mq.filters.sql.compiler import Properties, compile_condition
from strata_mq.filters.sql.syntax import (
    All,
    Any,
    Comparison,
    Condition,
    Equality,
    InCondition,
    Not,
    NullTest,
    Property,
    TextTest,
    Truth,
    Value,
    operands_of,
)

Work = Generator[int, None, bool | None]
"""Yields the steps of each piece before it is evaluated; returns the outcome."""

Stepwise = Callable[[Properties], Work]

# Nodes of one piece: with properties of 16 KB it takes 1 to 2 ms at most.
_PIECE_NODES = 24
_CHARACTERS_PER_STEP = 64


def compile_stepwise(condition: Condition) -> Stepwise:
    """Return what evaluates a condition in pieces.

    It raises EvaluationError: the message does not match.
    """
    if _is_small(condition):
        return _piece(condition)
    if isinstance(condition, All | Any):
        return _row(condition)
    return _wrapped(condition)


def _piece(condition: Condition) -> Stepwise:
    """Evaluate a small condition at once."""
    decide = compile_condition(condition)
    nodes = 0
    looks: Counter[str] = Counter()
    for node in _nodes(condition):
        nodes += 1
        if isinstance(node, Property | Truth | InCondition):
            looks[node.name] += 1
    looked_at = tuple(looks.items())

    def work(properties: Properties) -> Work:
        steps = nodes
        for name, times in looked_at:
            text = properties.get(name)
            if text is not None:
                steps += times * (len(text) // _CHARACTERS_PER_STEP)
        yield steps
        return decide(properties)

    return work


def _row(row: All | Any) -> Stepwise:
    """Evaluate AND or OR: small operands that stand side by side are one piece."""
    deciding = isinstance(row, Any)
    parts = [compile_stepwise(operand) for operand in _grouped(row)]

    def work(properties: Properties) -> Work:
        outcome: bool | None = not deciding
        for part in parts:
            value = yield from part(properties)
            if value is None:
                outcome = None
            elif value is deciding:
                return deciding
        return outcome

    return work


def _grouped(row: All | Any) -> Iterator[Condition]:
    """Iterate a row's operands, neighbours joined as far as they are small together."""
    joined: list[Condition] = []
    nodes = 0
    for operand in row.operands:
        count = _count(operand)
        # The row itself is a node.
        if joined and nodes + count + 1 >= _PIECE_NODES:
            yield _joined(row, joined)
            joined, nodes = [], 0
        joined.append(operand)
        nodes += count
    yield _joined(row, joined)


def _joined(row: All | Any, operands: list[Condition]) -> Condition:
    return operands[0] if len(operands) == 1 else replace(row, operands=tuple(operands))


def _wrapped(condition: Condition) -> Stepwise:
    """Evaluate what stands around large conditions: these first, then the rest as one piece.

    To the rest a large condition is a property that is "true", "false" or missing, under a name
    that no expression can write.
    """
    large: dict[str, Stepwise] = {}

    def small(operand: Condition, name: str) -> Condition:
        if _is_small(operand):
            return operand
        large[name] = compile_stepwise(operand)
        return Truth(name)

    def small_value(value: Value, name: str) -> Value:
        # A node that is no condition is a leaf.
        return small(value, name) if isinstance(value, Condition) else value

    match condition:
        case Not(operand):
            rest = _piece(Not(small(operand, " operand")))
        case NullTest(operand) | TextTest(operand=operand):
            rest = _piece(replace(condition, operand=small_value(operand, " operand")))
        case Equality(left, right) | Comparison(_, left, right):
            rest = _piece(
                replace(
                    condition, left=small_value(left, " left"), right=small_value(right, " right")
                )
            )
        case _:
            # A leaf.
            rest = _piece(condition)

    def work(properties: Properties) -> Work:
        known = dict(properties)
        for name, part in large.items():
            value = yield from part(properties)
            if value is not None:
                known[name] = "true" if value else "false"
        return (yield from rest(known))

    return work


def _is_small(value: Value) -> bool:
    return _count(value, _PIECE_NODES) < _PIECE_NODES


def _count(value: Value, most: int | None = None) -> int:
    """Return how many nodes a tree has; `most`: how many are counted."""
    count = 0
    for _ in _nodes(value):
        count += 1
        if count == most:
            break
    return count


def _nodes(value: Value) -> Iterator[Value]:
    """Iterate a tree's nodes; takes no stack."""
    left = [value]
    while left:
        node = left.pop()
        yield node
        left.extend(operands_of(node))
