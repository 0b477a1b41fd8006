"""Parser from the text of a SQL92 filter to its tree, with every check that needs no message.

The grammar, loosest first; all binary operators associate to the left:

    condition   = conjunction { OR conjunction }
    conjunction = equality { AND equality }
    equality    = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison  = unary { ("<" | "<=" | ">" | ">=") unary
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN "(" text { "," text } ")"
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary       = ("+" | "-" | NOT) unary | literal | name | "(" condition ")"

NOT binds as tightly as a sign, as in RocketMQ: `NOT a = 'x'` is `(NOT a) = 'x'`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isinf

from strata_mq.filters.sql.lexer import Token, TokenKind, illegal, tokens_of
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
    height_of,
)
from strata_mq.requests.errors import RequestError

_LONG_MAX = (1 << 63) - 1
_ORDERINGS = frozenset(("<", "<=", ">", ">="))
_EQUALITIES = frozenset(("=", "<>"))
_TEXT_TESTS = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_NEGATABLE = frozenset(("BETWEEN", "IN", *_TEXT_TESTS))
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """Limits of one expression; each is far above what people write.

    Attributes:
        max_length: characters.
        max_tokens: words and symbols.
        max_depth: parentheses, NOT and signs inside one another, comparisons in a row, and the
            height of the tree that they make together: whoever walks it needs as much stack.
    """

    max_length: int = 65_536
    max_tokens: int = 8_192
    max_depth: int = 64


def parse(expression: str, limits: SqlLimits) -> Condition:
    """Return the tree of an expression.

    Raises:
        RequestError: ILLEGAL_FILTER_EXPRESSION, with the character at which it is wrong.
    """
    if len(expression) > limits.max_length:
        raise illegal(limits.max_length + 1, f"longer than {limits.max_length} characters")
    tree = _Parser(tokens_of(expression, limits.max_tokens), limits.max_depth).whole()
    # Each level of parentheses may hold a row of comparisons: only the tree shows their product.
    if height_of(tree) > limits.max_depth:
        raise illegal(1, f"conditions are nested more than {limits.max_depth} deep")
    return tree


class _Parser:
    """One pass over the tokens."""

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self._tokens = tokens
        self._max_depth = max_depth
        self._depth = 0
        self._position = 0

    def whole(self) -> Condition:
        first = self._token
        if first.kind is TokenKind.END:
            raise illegal(first.at, "the expression is empty")
        condition = _as_condition(self._condition(), first)
        if self._token.kind is not TokenKind.END:
            raise self._unexpected("AND, OR or the end")
        return condition

    # Grammar ------------------------------------------------------------------------------------

    def _condition(self) -> Value:
        first = self._token
        value = self._conjunction()
        if not self._is_next("OR"):
            return value
        operands = [_as_condition(value, first)]
        while self._take("OR"):
            first = self._token
            operands.append(_as_condition(self._conjunction(), first))
        return Any(tuple(operands))

    def _conjunction(self) -> Value:
        first = self._token
        value = self._equality()
        if not self._is_next("AND"):
            return value
        operands = [_as_condition(value, first)]
        while self._take("AND"):
            first = self._token
            operands.append(_as_condition(self._equality(), first))
        return All(tuple(operands))

    def _equality(self) -> Value:
        first = self._token
        left = self._comparison()
        for _ in range(self._max_depth):
            operator = self._token
            if operator.text in _EQUALITIES and operator.kind is TokenKind.SYMBOL:
                self._position += 1
                second = self._token
                right = self._comparison()
                _check_equality(left, first, right, second)
                left = Equality(left, right)
                if operator.text == "<>":
                    left = Not(left)
            elif self._take("IS"):
                negated = self._take("NOT")
                self._expect("NULL")
                left = Not(NullTest(left)) if negated else NullTest(left)
            else:
                return left
        raise illegal(self._token.at, f"more than {self._max_depth} comparisons in a row")

    def _comparison(self) -> Value:
        first = self._token
        left = self._unary()
        for _ in range(self._max_depth):
            operator = self._token
            if operator.text in _ORDERINGS and operator.kind is TokenKind.SYMBOL:
                self._position += 1
                second = self._token
                right = self._unary()
                _check_ordered(left, first)
                _check_ordered(right, second)
                left = Comparison(operator.text, left, right)
                continue
            negated = self._is_next("NOT")
            test = self._tokens[self._position + negated]
            if test.kind is not TokenKind.WORD or test.text not in _NEGATABLE:
                return left
            self._position += 1 + negated
            left = self._test(test.text, left, first, negated=negated)
        raise illegal(self._token.at, f"more than {self._max_depth} comparisons in a row")

    def _test(self, test: str, left: Value, first: Token, *, negated: bool) -> Condition:
        """Parse what follows BETWEEN, IN and the tests of texts."""
        if test == "BETWEEN":
            return self._between(left, first, negated=negated)
        if test == "IN":
            if not isinstance(left, Property):
                raise illegal(first.at, "IN is for a property")
            return InCondition(left.name, self._texts(), negated)
        return TextTest(test, left, self._text(), negated)

    def _between(self, value: Value, first: Token, *, negated: bool) -> Condition:
        low_token = self._token
        low = self._unary()
        self._expect("AND")
        high_token = self._token
        high = self._unary()
        for operand, token in ((value, first), (low, low_token), (high, high_token)):
            _check_ordered(operand, token)
        if negated:
            return Any((Comparison("<", value, low), Comparison(">", value, high)))
        if isinstance(low, Literal) and isinstance(high, Literal) and _number(low) > _number(high):
            raise illegal(low_token.at, "the lower bound of BETWEEN is above the upper one")
        return All((Comparison(">=", value, low), Comparison("<=", value, high)))

    def _unary(self) -> Value:
        token = self._token
        if token.kind is TokenKind.SYMBOL and token.text in "+-":
            self._position += 1
            operand = self._nested(self._unary, token)
            return operand if token.text == "+" else _negative(operand)
        if self._take("NOT"):
            first = self._token
            return Not(_as_condition(self._nested(self._unary, token), first))
        return self._primary()

    def _primary(self) -> Value:
        token = self._token
        self._position += 1
        match token.kind:
            case TokenKind.NAME:
                return Property(token.text)
            case TokenKind.TEXT:
                return Literal(token.text)
            case TokenKind.INTEGER:
                return Literal(_integer(token))
            case TokenKind.DECIMAL:
                return Literal(_decimal(token))
            case TokenKind.WORD if token.text in _CONSTANTS:
                return Literal(_CONSTANTS[token.text])
            case TokenKind.SYMBOL if token.text == "(":
                value = self._nested(self._condition, token)
                self._expect(")")
                return value
        self._position -= 1
        raise self._unexpected("a value")

    def _texts(self) -> frozenset[str]:
        self._expect("(")
        texts = {self._text()}
        while self._take(","):
            texts.add(self._text())
        self._expect(")")
        return frozenset(texts)

    def _text(self) -> str:
        token = self._token
        if token.kind is not TokenKind.TEXT:
            raise self._unexpected("a text in quotes")
        self._position += 1
        return token.text

    # Tokens -------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._position]

    def _is_next(self, text: str) -> bool:
        token = self._token
        return token.text == text and token.kind in (TokenKind.WORD, TokenKind.SYMBOL)

    def _take(self, text: str) -> bool:
        """Go over a keyword or symbol if it comes next."""
        found = self._is_next(text)
        self._position += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(text)

    def _nested(self, rule: Callable[[], Value], opening: Token) -> Value:
        """Apply a rule one level deeper."""
        if self._depth == self._max_depth:
            raise illegal(opening.at, f"nested more than {self._max_depth} deep")
        self._depth += 1
        value = rule()
        self._depth -= 1
        return value

    def _unexpected(self, wanted: str) -> RequestError:
        token = self._token
        found = token.kind.value if token.kind is TokenKind.END else f"[{token.text}]"
        return illegal(token.at, f"expected {wanted}, found {found}")


# Checks -----------------------------------------------------------------------------------------


def _as_condition(value: Value, first: Token) -> Condition:
    """Return a value as a condition; `first` is where it begins.

    Raises:
        RequestError: it is neither TRUE nor FALSE nor NULL, nor a property.
    """
    if isinstance(value, Property):
        return Truth(value.name)
    if isinstance(value, Literal):
        if value.value is None or isinstance(value.value, bool):
            return Constant(value.value)
    elif not isinstance(value, Nothing):
        return value
    raise illegal(first.at, "this is no condition")


def _check_equality(left: Value, first: Token, right: Value, second: Token) -> None:
    for operand, token in ((left, first), (right, second)):
        if isinstance(operand, Literal) and operand.value is None:
            raise illegal(token.at, "nothing is equal to NULL, write IS NULL")
    if (
        isinstance(left, Literal)
        and isinstance(right, Literal)
        and left.type is ValueType.BOOLEAN
        and right.type is not ValueType.BOOLEAN
    ):
        raise illegal(second.at, "a boolean cannot be compared with this")


def _check_ordered(operand: Value, first: Token) -> None:
    """Let pass what may be a number: ordering is for numbers only."""
    if isinstance(operand, Property | Nothing) or operand.type is ValueType.NUMBER:
        return
    raise illegal(first.at, "only numbers and properties can be compared by order")


# Literals ---------------------------------------------------------------------------------------


def _negative(operand: Value) -> Value:
    return Literal(-_number(operand)) if operand.type is ValueType.NUMBER else Nothing()


def _number(value: Value) -> int | float:
    assert isinstance(value, Literal), "only literals are known to be numbers"
    assert isinstance(value.value, int | float)
    return value.value


def _integer(token: Token) -> int:
    digits = token.text.rstrip("lL")
    # Shorter than any text that `int` takes long for.
    if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
        raise illegal(token.at, f"integers go up to {_LONG_MAX}")
    return int(digits)


def _decimal(token: Token) -> float:
    number = float(token.text)
    if isinf(number) or not number:
        raise illegal(token.at, "this decimal number is 0, or beyond what a double holds")
    return number
