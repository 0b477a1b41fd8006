"""SQL92 filters: the table of cases, what is illegal and where, limits, and what a tree tells."""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from strata_mq.filters.sql import EvaluationError, SqlLimits, compile_sql
from strata_mq.requests.errors import Code, RequestError

TABLE = Path(__file__).parents[2] / "vectors" / "mq" / "sql.txt"
TEXTS = {True: "TRUE", False: "FALSE", None: "NULL"}


def table() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Give (expected, expression, properties) of every line of the table."""
    properties: dict[str, str] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("properties:"):
            properties = dict(pair.split("=", 1) for pair in line.split()[1:])
        elif line and not line.startswith("#"):
            expected, expression = line.split(maxsplit=1)
            yield expected, expression, properties


def outcome(expression: str, properties: dict[str, str]) -> str:
    try:
        return TEXTS[compile_sql(expression).evaluate(properties)]
    except EvaluationError:
        return "FAILS"


@pytest.mark.parametrize(
    ("expected", "expression", "properties"),
    [pytest.param(*case, id=case[1]) for case in table()],
)
def test_every_case_of_the_table(
    expected: str, expression: str, properties: dict[str, str]
) -> None:
    """Each expression is what its line says."""
    assert outcome(expression, properties) == expected


ILLEGAL = [
    ("", 1, "empty"),
    ("  -- nothing\n", 14, "empty"),
    ("a >", 4, "expected a value, found the end"),
    ("a = 1 b", 7, "expected AND, OR or the end, found [b]"),
    ("a = 1)", 6, "found [)]"),
    ("(a = 1", 7, "expected )"),
    ("a = 'x", 5, "does not end"),
    ("a = 1 /* x", 7, "does not end"),
    ("a != 1", 3, "write <>"),
    ("a == 1", 4, "expected a value"),
    ("a # 1", 3, "unexpected character '#'"),
    ("a + 1 > 2", 3, "found [+]"),
    ("a LIKE 'x'", 3, "found [LIKE]"),
    ("a = NULL", 5, "IS NULL"),
    ("NULL = a", 1, "IS NULL"),
    ("a <> NULL", 6, "IS NULL"),
    ("a > 'x'", 5, "only numbers"),
    ("'x' > a", 1, "only numbers"),
    ("a > TRUE", 5, "only numbers"),
    ("a > NULL", 5, "only numbers"),
    ("a > (b = 1)", 5, "only numbers"),
    ("NOT a > 1", 1, "only numbers"),
    ("a > 1 > 2", 1, "only numbers"),
    ("TRUE = 5", 8, "boolean"),
    ("a BETWEEN 2 AND 1", 11, "lower bound"),
    ("a BETWEEN -1 AND -2", 11, "lower bound"),
    ("a BETWEEN NULL AND 1", 11, "only numbers"),
    ("a BETWEEN 1 AND NULL", 17, "only numbers"),
    ("a BETWEEN 'a' AND 'b'", 11, "only numbers"),
    ("a BETWEEN 1", 12, "expected AND"),
    ("5 IN ('a')", 1, "for a property"),
    ("'a' IN ('a')", 1, "for a property"),
    ("NOT a IN ('x')", 1, "for a property"),
    ("a IN (1)", 7, "a text in quotes"),
    ("a IN ()", 7, "a text in quotes"),
    ("a IN ('x',)", 11, "a text in quotes"),
    ("a IN 'x'", 6, "expected ("),
    ("a CONTAINS b", 12, "a text in quotes"),
    ("a IS 5", 6, "expected NULL"),
    ("a IS NOT TRUE", 10, "expected NULL"),
    ("a NOT 5", 3, "found [NOT]"),
    ("5", 1, "no condition"),
    ("'a'", 1, "no condition"),
    ("-a", 1, "no condition"),
    ("a = 1 AND 5", 11, "no condition"),
    ("5 OR a = 1", 1, "no condition"),
    ("NOT 'a'", 5, "no condition"),
    ("a = 9223372036854775808", 5, "integers go up to"),
    ("a = -9223372036854775808", 6, "integers go up to"),
    ("a = 0.0", 5, "decimal"),
    ("a = 1e400", 5, "decimal"),
    ("a = 1e-400", 5, "decimal"),
    ("a = 007", 6, "found [0]"),
    ("a = 0x10", 6, "found [x10]"),
    ("a = 5x", 6, "found [x]"),
    ("and", 1, "found [AND]"),
    ("ä = 1", 1, "unexpected character 'ä'"),
]


@pytest.mark.parametrize(("expression", "at", "why"), ILLEGAL)
def test_illegal_expressions_say_where_and_why(expression: str, at: int, why: str) -> None:
    """The code is RocketMQ's; the text names the character, counted from 1."""
    with pytest.raises(RequestError) as caught:
        compile_sql(expression)
    assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION
    assert caught.value.text.startswith(f"SQL92 filter is wrong at character {at}: ")
    assert why in caught.value.text


def test_limits_are_kept() -> None:
    """Length, number of words, nesting and chains are bounded; what is just below them passes."""
    limits = SqlLimits(max_length=60, max_tokens=19, max_depth=4)
    compile_sql("a" * 60, limits)
    compile_sql("((((a))))", limits)
    compile_sql("a" + " OR a" * 9, limits)
    compile_sql("a = a = a = a", limits)
    for expression in (
        "a" * 61,
        "(((((a)))))",
        "NOT NOT NOT NOT NOT a",
        "a = - - - - - 1",
        "a" + " OR a" * 10,
        "a = a = a = a = a",
        "a IS NULL IS NULL IS NULL IS NULL",
    ):
        with pytest.raises(RequestError) as caught:
            compile_sql(expression, limits)
        assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION, expression


def test_the_largest_expressions_are_compiled_and_evaluated() -> None:
    """At the limits neither the parser nor an evaluation runs out of stack."""
    deep = "(" * 64 + "a = 1" + ")" * 64
    wide = "a = 1" + " AND a = 1" * 2_000
    chain = "NOT " * 64 + "yes"
    row = "a" + " = 1" + " = TRUE" * 62
    for expression in (deep, wide, chain, row):
        assert compile_sql(expression).evaluate({"a": "1", "yes": "true"}) is True


def on_a_stack_of(frames: int, work: Callable[[], None]) -> None:
    """Call `work` with so many Python frames below it, as in a server."""
    if frames:
        on_a_stack_of(frames - 1, work)
    else:
        work()


NESTINGS = ["({} IS NULL{row})", "({} = TRUE{row})", "({} <> FALSE{row})", "NOT ({}{row})"]
NESTINGS += ["({} OR b{row})", "(b AND {}{row})", "(b = {}{row})", "({} CONTAINS 'x'{row})"]
ROWS = [" IS NULL", " IS NOT NULL", " = TRUE", " <> TRUE", " CONTAINS 'x'", " NOT STARTSWITH 'x'"]


def test_products_of_the_limits_are_refused_or_work() -> None:
    """Rows of tests inside parentheses inside one another never run out of stack.

    An accepted expression is compiled and evaluated with 400 frames below it; a refused one is
    ILLEGAL_FILTER_EXPRESSION. Rows and levels multiply, so each alone may be within its limit.
    """
    refused = accepted = 0

    def check(expression: str) -> None:
        nonlocal refused, accepted
        try:
            condition = compile_sql(expression)
        except RequestError as bad:
            assert bad.code is Code.ILLEGAL_FILTER_EXPRESSION
            refused += 1
            return
        assert condition.evaluate({"a": "true", "b": "false"}) in (True, False, None)
        accepted += 1

    for nesting, row in itertools.product(NESTINGS, ROWS):
        for levels, width in itertools.product((1, 2, 12, 64), (0, 2, 31, 62)):
            expression = "a"
            for _ in range(levels):
                expression = nesting.format(expression, row=row * width)
            on_a_stack_of(400, partial(check, expression))
    assert refused > 50
    assert accepted > 50


def test_a_filter_of_6_kb_that_ended_a_node_is_refused() -> None:
    """Twelve levels of 63 tests each: each limit was kept, and the stack was not enough."""
    expression = "a"
    for _ in range(12):
        expression = "(" + expression + " IS NULL" * 62 + ")"
    with pytest.raises(RequestError, match="nested more than 64 deep"):
        compile_sql(expression)


def test_a_caller_without_stack_gets_the_one_error() -> None:
    """A RecursionError never leaves the compiler."""
    expression = "(" * 60 + "a" + ")" * 60

    def check() -> None:
        with pytest.raises(RequestError, match="nested too deep"):
            compile_sql(expression)

    used = len(inspect.stack(0))
    on_a_stack_of(sys.getrecursionlimit() - used - 200, check)


def test_garbage_is_refused_by_the_one_error() -> None:
    """Any text compiles or is ILLEGAL_FILTER_EXPRESSION."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pieces = ["a", "b", "'x'", "1", "1.5", "(", ")", ",", "=", "<>", "<", ">=", "-", "+", "NOT"]
    pieces += ["AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN", "CONTAINS", "/*", "'", "é", "\0"]
    for _ in range(20_000):
        text = " ".join(chance.choices(pieces, k=chance.randint(1, 8)))
        try:
            condition = compile_sql(text)
        except RequestError as bad:
            assert bad.code is Code.ILLEGAL_FILTER_EXPRESSION
            continue
        try:
            assert condition.evaluate({"a": "1", "b": "x"}) in (True, False, None)
        except EvaluationError:
            continue


def test_texts_that_look_like_numbers_to_python_only_are_none() -> None:
    """Neither blanks, underscores, NaN, infinity, hex nor other digits make a number."""
    other_digit = "\u0661"
    for text in ("nan", "NaN", "inf", "Infinity", "1_0", " 1", "1 ", "0x1", other_digit, "1.5f"):
        assert outcome("a > 0", {"a": text}) == "FAILS", text
    for text in ("1", "+1", "1.", ".5", "1e3", "1E+3", "1" * 400, "1e400"):
        assert outcome("a > 0", {"a": text}) == "TRUE", text


def test_integers_are_compared_exactly_and_decimals_as_doubles() -> None:
    """Integers of 64 bits keep every digit; beside a decimal number both sides are doubles."""
    properties = {"n": "9007199254740993"}
    assert outcome("n = 9007199254740993", properties) == "TRUE"
    assert outcome("n = 9007199254740992", properties) == "FALSE"
    assert outcome("n = 9007199254740992.0", properties) == "TRUE"
    assert outcome("a = 0.1", {"a": "0.10"}) == "TRUE"


def test_an_expression_tells_which_properties_it_asks_for() -> None:
    """Only those have to be read from a message."""
    condition = compile_sql(
        "a > 1 AND (b IN ('x') OR NOT (c BETWEEN d AND 5)) AND e IS NULL AND f CONTAINS 'x' AND g"
    )
    assert condition.names == frozenset("abcdefg")
    assert compile_sql("TRUE OR 1 = 1").names == frozenset()


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("TAGS = 'x'", {"x"}),
        ("'x' = TAGS", {"x"}),
        ("TAGS IN ('x', 'y')", {"x", "y"}),
        ("TAGS IN ('x') AND a > 1", {"x"}),
        ("a > 1 AND TAGS = 'x'", {"x"}),
        ("TAGS = 'x' OR a > 1", None),
        ("TAGS <> 'x'", None),
        ("NOT (TAGS = 'x')", None),
        ("TAGS NOT IN ('x')", None),
        ("TAGS = 5", None),
        ("tags = 'x'", None),
        ("TAGS STARTSWITH 'x'", None),
    ],
)
def test_an_expression_tells_what_pins_a_property(expression: str, texts: set[str] | None) -> None:
    """Then the index of tags is enough to pass over all others."""
    assert compile_sql(expression).texts_of("TAGS") == texts
