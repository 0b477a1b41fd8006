"""Tokens of a SQL92 filter expression.

The lexer knows characters, not grammar. An error names its place: characters count from 1.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from strata_mq.requests.errors import Code, RequestError


class TokenKind(Enum):
    """Kind of a token; keywords and symbols have kinds of their own, by their upper-case text."""

    INTEGER = "an integer"
    DECIMAL = "a decimal number"
    TEXT = "a text"
    NAME = "a name"
    WORD = "a keyword"
    SYMBOL = "a symbol"
    END = "the end of the expression"


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: what it is.
        text: keywords in upper case; texts without their quotes; all others as written.
        at: character of the expression it begins at, from 1.
    """

    kind: TokenKind
    text: str
    at: int


KEYWORDS = frozenset(
    (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
)

# The longest alternative of those that begin alike stands first: 5.5 is no 5 and .5.
_TOKEN = re.compile(
    r"""
    (?P<blank>   [ \t\n\r\f]+ | --[^\n\r]* | /\*(?s:.*?)\*/ )
  | (?P<decimal> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
               | \.[0-9]+(?:[eE][+-]?[0-9]+)?
               | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<integer> 0 | [1-9][0-9]*[lL]? )
  | (?P<text>    '[^']*(?:''[^']*)*' )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<symbol>  <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)


def illegal(at: int, why: str) -> RequestError:
    """Return the error for what stands at a character of an expression."""
    return RequestError(
        Code.ILLEGAL_FILTER_EXPRESSION, f"SQL92 filter is wrong at character {at}: {why}"
    )


def tokens_of(expression: str, max_tokens: int) -> list[Token]:
    """Return the tokens of an expression; the last one is END.

    Raises:
        RequestError: ILLEGAL_FILTER_EXPRESSION, an unknown character, a text or a comment that
            does not end, or more tokens than allowed.
    """
    tokens: list[Token] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise illegal(at + 1, _unknown(expression, at))
        if match.lastgroup != "blank":
            if len(tokens) == max_tokens:
                raise illegal(at + 1, f"more than {max_tokens} words and symbols")
            tokens.append(_token(match, at + 1))
        at = match.end()
    tokens.append(Token(TokenKind.END, "", at + 1))
    return tokens


def _token(match: re.Match[str], at: int) -> Token:
    text = match[0]
    match match.lastgroup:
        case "name":
            upper = text.upper()
            return (
                Token(TokenKind.WORD, upper, at)
                if upper in KEYWORDS
                else Token(TokenKind.NAME, text, at)
            )
        case "text":
            return Token(TokenKind.TEXT, text[1:-1].replace("''", "'"), at)
        case "integer":
            return Token(TokenKind.INTEGER, text, at)
        case "decimal":
            return Token(TokenKind.DECIMAL, text, at)
        case _:
            return Token(TokenKind.SYMBOL, text, at)


def _unknown(expression: str, at: int) -> str:
    rest = expression[at : at + 2]
    if rest[0] == "'":
        return "the text that begins here does not end"
    if rest == "/*":
        return "the comment that begins here does not end"
    if rest == "!=":
        return "there is no !=, write <>"
    return f"unexpected character {rest[0]!r}"
