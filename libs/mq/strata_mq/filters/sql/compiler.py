"""Compiler from the tree of a SQL92 filter to closures, one per node; no text is ever executed.

Three-valued logic: a condition is True, False or None (NULL). Values that cannot be compared raise
`EvaluationError`: the message does not match, whatever the surrounding condition says, except
behind an AND or OR that is already decided. Types are known from the tree, so a closure converts
without a check.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from strata_mq.filters.sql.syntax import (
    All,
    Any,
    Comparison,
    Condition,
    Constant,
    Equality,
    InCondition,
    Literal,
    Not,
    Nothing,
    NullTest,
    Property,
    TextTest,
    Truth,
    Value,
    ValueType,
    operands_of,
)

Properties = Mapping[str, str]
Decide = Callable[[Properties], bool | None]
"""Evaluates a condition for the properties of a message."""

Scalar = str | int | float | bool
Read = Callable[[Properties], Scalar | None]
Compare = Callable[[Scalar, Scalar], bool]
"""Compares two values that are not NULL."""


class EvaluationError(ValueError):
    """A text that should be a number is none."""


_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


def compile_condition(condition: Condition) -> Decide:
    """Return what evaluates a condition.

    It raises EvaluationError: the message does not match.
    """
    match condition:
        case Constant():
            return lambda _: condition.value
        case Truth():
            return _truth(condition.name)
        case Not():
            return _not(compile_condition(condition.operand))
        case All():
            return _all(tuple(map(compile_condition, condition.operands)))
        case Any():
            return _any(tuple(map(compile_condition, condition.operands)))
        case Equality():
            return _equality(condition)
        case Comparison():
            return _comparison(condition)
        case NullTest():
            operand = _read(condition.operand)
            return lambda properties: operand(properties) is None
        case InCondition():
            return _membership(condition)
        case TextTest():
            return _text_test(condition)


def names_in(value: Value) -> frozenset[str]:
    """Return the properties that a tree names."""
    match value:
        case Property() | Truth() | InCondition():
            return frozenset((value.name,))
        case _:
            return frozenset().union(*map(names_in, operands_of(value)))


# Logic ------------------------------------------------------------------------------------------


def _truth(name: str) -> Decide:
    def decide(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text.lower() == "true"

    return decide


def _not(operand: Decide) -> Decide:
    def decide(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return decide


def _all(operands: tuple[Decide, ...]) -> Decide:
    def decide(properties: Properties) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return decide


def _any(operands: tuple[Decide, ...]) -> Decide:
    def decide(properties: Properties) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result

    return decide


# Tests ------------------------------------------------------------------------------------------


def _equality(condition: Equality) -> Decide:
    left, right = _read(condition.left), _read(condition.right)
    equal = _equal(condition.left, condition.right)

    def decide(properties: Properties) -> bool | None:
        left_value, right_value = left(properties), right(properties)
        if left_value is None:
            return None
        # As in RocketMQ, NULL on the right of = is merely not equal.
        return right_value is not None and equal(left_value, right_value)

    return decide


def _comparison(condition: Comparison) -> Decide:
    left, right = _read(condition.left), _read(condition.right)
    order = _ORDERS[condition.operator]
    convert = _conversion(condition.left, condition.right)

    def decide(properties: Properties) -> bool | None:
        left_value = left(properties)
        if left_value is None:
            return None
        right_value = right(properties)
        if right_value is None:
            return None
        return order(convert(left_value), convert(right_value))

    return decide


def _membership(condition: InCondition) -> Decide:
    name, texts, negated = condition.name, condition.texts, condition.negated

    def decide(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in texts) is not negated

    return decide


def _text_test(condition: TextTest) -> Decide:
    text, negated = condition.text, condition.negated
    if not text:
        return lambda _: False
    operand, test = _read(condition.operand), _TEXT_TESTS[condition.test]

    def decide(properties: Properties) -> bool | None:
        value = operand(properties)
        # FALSE for an absent property, negated or not.
        return isinstance(value, str) and test(value, text) is not negated

    return decide


# Values -----------------------------------------------------------------------------------------


def _read(value: Value) -> Read:
    match value:
        case Property():
            name = value.name
            return lambda properties: properties.get(name)
        case Literal():
            constant = value.value
            return lambda _: constant
        case Nothing():
            return lambda _: None
        case _:
            return compile_condition(value)


def _equal(left: Value, right: Value) -> Compare:
    """Return what tells whether two values are equal, from their types."""
    types = {left.type, right.type}
    if ValueType.NUMBER in types:
        if ValueType.BOOLEAN in types:
            return lambda _, __: False
        convert = _conversion(left, right)
        return lambda a, b: convert(a) == convert(b)
    if types == {ValueType.TEXT, ValueType.BOOLEAN}:
        return lambda a, b: _as_boolean(a) == _as_boolean(b)
    return operator.eq


def _conversion(left: Value, right: Value) -> Callable[[Scalar], float]:
    """Return how both sides of a comparison become numbers: doubles, unless one is an integer."""
    numbers = [
        value.value
        for value in (left, right)
        if isinstance(value, Literal) and value.type is ValueType.NUMBER
    ]
    return _as_number if numbers and all(isinstance(n, int) for n in numbers) else _as_double


def _as_boolean(value: Scalar) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def _as_number(value: Scalar) -> int | float:
    """Return an integer as it is, whatever its size; a text that is none becomes a double."""
    if not isinstance(value, str):
        return value
    return int(value) if _INTEGER.fullmatch(value) else _as_double(value)


def _as_double(value: Scalar) -> float:
    # `float` alone would take "nan", "1_000" and blanks.
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise EvaluationError("the text is no number")
    return float(value)
