"""The tree of a SQL92 filter expression: values, and conditions over them.

Built by `parser`, which makes every check that needs no message, and read by `compiler`. Immutable;
knows nothing of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ValueType(Enum):
    """Type of a value, known before there is a message."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "NULL"


# Values -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; None is NULL."""

    value: str | int | float | bool | None

    @property
    def type(self) -> ValueType:
        """See `ValueType`."""
        match self.value:
            case None:
                return ValueType.NULL
            case bool():
                return ValueType.BOOLEAN
            case str():
                return ValueType.TEXT
            case _:
                return ValueType.NUMBER


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message, by name; every property is text, a missing one is NULL."""

    name: str

    @property
    def type(self) -> ValueType:
        """See `ValueType`."""
        return ValueType.TEXT


@dataclass(frozen=True, slots=True)
class Nothing:
    """The negative of what is no number: NULL, but not the word."""

    @property
    def type(self) -> ValueType:
        """See `ValueType`."""
        return ValueType.NULL


# Conditions: TRUE, FALSE or NULL ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Condition:
    @property
    def type(self) -> ValueType:
        """See `ValueType`."""
        return ValueType.BOOLEAN


@dataclass(frozen=True, slots=True)
class Constant(_Condition):
    """TRUE, FALSE or NULL as a condition."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Truth(_Condition):
    """A property as a condition: TRUE if its text is "true" in any case."""

    name: str


@dataclass(frozen=True, slots=True)
class Not(_Condition):
    """NOT."""

    operand: Condition


@dataclass(frozen=True, slots=True)
class All(_Condition):
    """AND of two operands or more, looked at from left to right until one is FALSE."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any(_Condition):
    """OR of two operands or more, looked at from left to right until one is TRUE."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Equality(_Condition):
    """=; `<>` is its Not."""

    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Comparison(_Condition):
    """An ordering of numbers, or of texts that are numbers; `operator` is <, <=, > or >=."""

    operator: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class NullTest(_Condition):
    """IS NULL; IS NOT NULL is its Not."""

    operand: Value


@dataclass(frozen=True, slots=True)
class InCondition(_Condition):
    """[NOT] IN."""

    name: str
    texts: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextTest(_Condition):
    """[NOT] CONTAINS, STARTSWITH or ENDSWITH, named by `test`."""

    test: str
    operand: Value
    text: str
    negated: bool


Condition = (
    Constant | Truth | Not | All | Any | Equality | Comparison | NullTest | InCondition | TextTest
)

Value = Literal | Property | Nothing | Condition


def operands_of(value: Value) -> tuple[Value, ...]:
    """Return the values that a node is made of; () for a leaf."""
    match value:
        case Not() | NullTest() | TextTest():
            return (value.operand,)
        case All() | Any():
            return value.operands
        case Equality() | Comparison():
            return (value.left, value.right)
        case _:
            return ()


def height_of(value: Value) -> int:
    """Return how many nodes stand inside one another; 0 for a leaf. Takes no stack."""
    height = 0
    level = operands_of(value)
    while level:
        height += 1
        level = tuple(operand for node in level for operand in operands_of(node))
    return height
