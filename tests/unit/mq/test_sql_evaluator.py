"""Compiled SQL92 filters against an evaluator that walks a tree of its own, written from the facts.

The evaluator knows neither tokens nor types known beforehand: it asks each value what it is. Trees
are drawn at random and written out with as few parentheses as the order of operators needs, or
more, so the parser is compared too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_mq.filters.sql import EvaluationError, compile_sql, stepwise

Tree = tuple[Any, ...]

NAMES = ("a", "b", "c", "$d_1", "missing")
TEXTS = ("", "x", "xy", "it's", "true", "TRUE", "false", "10", "-3", "12.5", "1e2", "10.0", "é ü")
MORE_TEXTS = (*TEXTS, "3000000000", "9007199254740993", "nan", " 1", ".", "+", "1" * 25)
INTEGERS = (0, 1, 3, 10, 12, 3_000_000_000, 9_007_199_254_740_992, (1 << 63) - 1)
DECIMALS = (0.5, 12.5, 10.0, 100.0, 1e300)

OR, AND, EQUALITY, COMPARISON, UNARY, PRIMARY = range(1, 7)
LEVELS = {
    "or": OR,
    "and": AND,
    "=": EQUALITY,
    "<>": EQUALITY,
    "is null": EQUALITY,
    "is not null": EQUALITY,
    "order": COMPARISON,
    "between": COMPARISON,
    "in": COMPARISON,
    "text": COMPARISON,
    "not": UNARY,
    "-": UNARY,
    "+": UNARY,
    "literal": PRIMARY,
    "property": PRIMARY,
}


# The naive evaluator ----------------------------------------------------------------------------


class Fails(Exception):
    """The whole message does not match."""


def value_of(tree: Tree, properties: Mapping[str, str]) -> Any:
    """Return what a tree is: text, number, boolean or None."""
    kind, *parts = tree
    if kind == "literal":
        return parts[0]
    if kind == "property":
        return properties.get(parts[0])
    if kind == "+":
        return value_of(parts[0], properties)
    if kind == "-":
        value = value_of(parts[0], properties)
        return -value if is_number(value) else None
    return truth_of(tree, properties)


def truth_of(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    """Return what a tree is as a condition."""
    kind, *parts = tree
    if kind in ("and", "or"):
        decides = kind == "or"
        left = truth_of(parts[0], properties)
        if left is decides:
            return decides
        right = truth_of(parts[1], properties)
        if right is decides:
            return decides
        return None if left is None or right is None else not decides
    if kind == "not":
        value = truth_of(parts[0], properties)
        return None if value is None else not value
    if kind in ("=", "<>"):
        equal: bool | None = are_equal(
            value_of(parts[0], properties), value_of(parts[1], properties)
        )
        return equal if kind == "=" or equal is None else not equal
    if kind in ("is null", "is not null"):
        return bool((value_of(parts[0], properties) is None) == (kind == "is null"))
    if kind in ("order", "between", "in", "text"):
        return decide(kind, parts, properties)
    value = value_of(tree, properties)
    if isinstance(value, str):
        return value.lower() == "true"
    assert value is None or isinstance(value, bool)
    return value


def decide(kind: str, parts: list[Any], properties: Mapping[str, str]) -> bool | None:
    if kind == "order":
        operator, left, right = parts
        return is_in_order(operator, left, right, properties)
    if kind == "between":
        negated, value, low, high = parts
        if negated:
            outside = ("or", ("order", "<", value, low), ("order", ">", value, high))
            return truth_of(outside, properties)
        return truth_of(
            ("and", ("order", ">=", value, low), ("order", "<=", value, high)), properties
        )
    if kind == "in":
        negated, name, texts = parts
        return None if name not in properties else (properties[name] in texts) != negated
    test, negated, operand, text = parts
    value = value_of(operand, properties)
    if not text or not isinstance(value, str):
        return False
    found = {
        "CONTAINS": text in value,
        "STARTSWITH": value[: len(text)] == text,
        "ENDSWITH": value[-len(text) :] == text,
    }[test]
    return bool(found != negated)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(text: str) -> int | float:
    if not text or set(text) - set("0123456789+-.eE"):
        raise Fails
    try:
        double = float(text)
    except ValueError:
        raise Fails from None
    is_integer = text.lstrip("+-").isdigit() and len(text.lstrip("+-")) <= 19
    return int(text) if is_integer else double


def as_numbers(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both sides of a comparison as numbers: doubles, unless beside an integer."""
    texts = isinstance(left, str) and isinstance(right, str)
    left_number = number(left) if isinstance(left, str) else left
    right_number = number(right) if isinstance(right, str) else right
    if texts or isinstance(left, float) or isinstance(right, float):
        return float(left_number), float(right_number)
    return left_number, right_number


def are_equal(left: Any, right: Any) -> bool | None:
    if left is None:
        return None
    if right is None:
        return False
    kinds = {type(left), type(right)}
    if bool in kinds:
        if is_number(left) or is_number(right):
            return False
        sides = [s.lower() == "true" if isinstance(s, str) else s for s in (left, right)]
        return bool(sides[0] == sides[1])
    if kinds == {str}:
        return bool(left == right)
    left, right = as_numbers(left, right)
    return bool(left == right)


def is_in_order(
    operator: str, left: Tree, right: Tree, properties: Mapping[str, str]
) -> bool | None:
    left_value, right_value = value_of(left, properties), value_of(right, properties)
    if left_value is None or right_value is None:
        return None
    low, high = as_numbers(left_value, right_value)
    return bool({"<": low < high, "<=": low <= high, ">": low > high, ">=": low >= high}[operator])


# Trees drawn at random --------------------------------------------------------------------------


def is_constant(tree: Tree) -> bool:
    return tree[0] == "literal" or (tree[0] in "+-" and is_constant(tree[1]))


class Grower:
    """Draws legal trees."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, choices: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(choices))

    def numeric(self) -> Tree:
        """A property or a number, perhaps with signs."""
        if self.pick((True, True, False)):
            tree: Tree = ("property", self.pick(NAMES))
        else:
            tree = ("literal", self.pick((*INTEGERS, *DECIMALS)))
        while self.pick((True, False, False, False)):
            tree = (self.pick("+-"), tree)
        return tree

    def scalar(self) -> Tree:
        return self.numeric() if self.pick((True, True, False)) else ("literal", self.pick(TEXTS))

    def leaf(self) -> Tree:
        match self.pick(range(9)):
            case 0:
                return ("property", self.pick(NAMES))
            case 1:
                return ("literal", self.pick((True, False, None)))
            case 2:
                return self.between()
            case 3:
                several = tuple(self.pick(TEXTS) for _ in range(self.pick((1, 2, 3))))
                return ("in", self.pick((True, False)), self.pick(NAMES), several)
            case 4:
                operator = self.pick(("<", "<=", ">", ">="))
                return ("order", operator, self.numeric(), self.numeric())
            case 5:
                test = self.pick(("CONTAINS", "STARTSWITH", "ENDSWITH"))
                return ("text", test, self.pick((True, False)), self.scalar(), self.pick(TEXTS))
            case 6:
                return (self.pick(("is null", "is not null")), self.scalar())
            case 7:
                truth = ("literal", self.pick((True, False)))
                return (self.pick(("=", "<>")), ("property", self.pick(NAMES)), truth)
            case _:
                return (self.pick(("=", "<>")), self.scalar(), self.scalar())

    def between(self) -> Tree:
        """Constant bounds must be in order, unless NOT stands before."""
        negated, value = self.pick((True, False)), self.numeric()
        low, high = self.numeric(), self.numeric()
        if not negated and is_constant(low) and is_constant(high):
            low, high = sorted((low, high), key=lambda bound: value_of(bound, {}))
        return ("between", negated, value, low, high)

    def condition(self, depth: int) -> Tree:
        kind = self.pick(("leaf", "leaf", "and", "or", "not", "=", "<>", "is null", "is not null"))
        if not depth or kind == "leaf":
            return self.leaf()
        if kind in ("and", "or"):
            return (kind, self.condition(depth - 1), self.condition(depth - 1))
        if kind in ("=", "<>"):
            return (kind, self.comparable(depth - 1), self.comparable(depth - 1))
        return (kind, self.condition(depth - 1))

    def comparable(self, depth: int) -> Tree:
        """A condition that may stand beside =: no constant."""
        tree = self.condition(depth)
        return ("property", self.pick(NAMES)) if tree[0] == "literal" else tree


@st.composite
def conditions(draw: st.DrawFn) -> Tree:
    return Grower(draw).condition(3)


several_properties = st.lists(
    st.dictionaries(st.sampled_from(NAMES[:-1]), st.sampled_from(MORE_TEXTS), max_size=4),
    min_size=3,
    max_size=6,
)


# Writing them -----------------------------------------------------------------------------------


class Writer:
    """Writes a tree as an expression, with chances for case, blanks and parentheses."""

    def __init__(self, chance: Any) -> None:
        self._chance = chance

    def write(self, tree: Tree, level: int = OR) -> str:
        text = self._bare(tree)
        if LEVELS[tree[0]] < level or self._chance.random() < 0.1:
            return f"({text})"
        return text

    def word(self, text: str) -> str:
        return text.lower() if self._chance.random() < 0.3 else text

    def words(self, text: str) -> list[str]:
        return [self.word(word) for word in text.upper().split()]

    def blank(self) -> str:
        return str(self._chance.choice((" ", " ", " ", "\n", "\t ", " /* - */ ", " -- x\n")))

    def _bare(self, tree: Tree) -> str:
        kind, *parts = tree
        if kind == "literal":
            return self._literal(parts[0])
        if kind == "property":
            return str(parts[0])
        if kind in ("+", "-"):
            # A blank keeps two signs from becoming the beginning of a remark.
            return f"{kind} {self.write(parts[0], UNARY)}"
        if kind == "not":
            return self._join(self.word("NOT"), self.write(parts[0], UNARY))
        if kind in ("and", "or", "=", "<>"):
            level = LEVELS[kind]
            left, right = self.write(parts[0], level), self.write(parts[1], level + 1)
            return self._join(left, *self.words(kind), right)
        if kind in ("is null", "is not null"):
            return self._join(self.write(parts[0], EQUALITY), *self.words(kind))
        return self._test(kind, parts)

    def _test(self, kind: str, parts: list[Any]) -> str:
        if kind == "order":
            operator, left, right = parts
            return self._join(self.write(left, COMPARISON), operator, self.write(right, UNARY))
        negation = "not " if parts[kind == "text"] else ""
        if kind == "between":
            value, low, high = [self.write(operand, UNARY) for operand in parts[1:]]
            words = self.words(f"{negation}between")
            return self._join(value, *words, low, *self.words("and"), high)
        if kind == "in":
            _, name, several = parts
            listed = ", ".join(map(self._literal, several))
            return self._join(name, *self.words(f"{negation}in"), f"({listed})")
        test, _, operand, text = parts
        written = self.write(operand, COMPARISON)
        return self._join(written, *self.words(f"{negation}{test}"), self._literal(text))

    def _join(self, *pieces: str) -> str:
        text = pieces[0]
        for piece in pieces[1:]:
            text += self.blank() + piece
        return text

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if value is None or isinstance(value, bool):
            return self.word(str(value).upper().replace("NONE", "NULL"))
        return f"{value}L" if isinstance(value, int) and value > 1 << 31 else repr(value)


def naive_outcome(tree: Tree, properties: Mapping[str, str]) -> bool | str | None:
    try:
        return truth_of(tree, properties)
    except Fails:
        return "fails"


def outcome(expression: str, properties: Mapping[str, str]) -> bool | str | None:
    try:
        return compile_sql(expression).evaluate(properties)
    except EvaluationError:
        return "fails"


@settings(max_examples=500, deadline=None)
@given(
    tree=conditions(),
    several=several_properties,
    chance=st.randoms(use_true_random=False),
)
def test_compiled_and_naive_evaluation_agree(
    tree: Tree, several: list[dict[str, str]], chance: Any
) -> None:
    """For any tree, however it is written, and any properties both say the same."""
    expression = Writer(chance).write(tree)
    for properties in several:
        expected = naive_outcome(tree, properties)
        assert outcome(expression, properties) == expected, expression


@settings(max_examples=500, deadline=None)
@given(
    tree=conditions(),
    several=several_properties,
    piece_nodes=st.sampled_from((3, 6, 24)),
    chance=st.randoms(use_true_random=False),
)
def test_an_evaluation_in_pieces_comes_to_the_same(
    tree: Tree, several: list[dict[str, str]], piece_nodes: int, chance: Any
) -> None:
    """Outcome and errors are those of the whole, wherever an expression is cut."""
    condition = compile_sql(Writer(chance).write(tree)).tree
    with mock.patch.object(stepwise, "_PIECE_NODES", piece_nodes):
        evaluate = stepwise.compile_stepwise(condition)
    for properties in several:
        assert outcome_of_pieces(evaluate, properties) == naive_outcome(tree, properties)


def outcome_of_pieces(
    evaluate: stepwise.Stepwise, properties: Mapping[str, str]
) -> bool | str | None:
    work = evaluate(properties)
    try:
        while True:
            assert next(work) > 0
    except StopIteration as end:
        outcome: bool | None = end.value
        return outcome
    except EvaluationError:
        return "fails"


LONG = "x" * 16_000
LARGE = " OR ".join(["a CONTAINS 'y'"] * 500)


@pytest.mark.parametrize(
    "expression",
    [
        LARGE,
        " AND ".join(["a CONTAINS 'x'"] * 500),
        f"NOT ({LARGE})",
        f"({LARGE}) IS NULL",
        f"({LARGE}) = TRUE",
        f"b = 'z' AND (({LARGE}) IS NOT NULL OR NOT ({LARGE}))",
        " OR ".join(["a < 1"] * 500),
        " OR ".join(["a IN ('y')"] * 500),
        " OR ".join(["a"] * 500),
        " OR ".join(["a = TRUE"] * 500),
    ],
)
def test_no_piece_of_an_evaluation_is_large(expression: str) -> None:
    """However an expression is built: 500 looks at 16,000 characters are many pieces."""
    work = stepwise.compile_stepwise(compile_sql(expression).tree)({"a": LONG, "b": "z"})
    steps: list[int] = []
    with suppress(EvaluationError):
        steps.extend(work)
    if "<" in expression:
        # A text that is no number ends it at the first piece.
        assert len(steps) == 1
    else:
        assert sum(steps) >= 500 * len(LONG) // 64
    assert max(steps) <= 24 * (1 + len(LONG) // 64)
