"""Filters of subscriptions: everything, tags, or SQL92 over the properties.

A filter names hashes of tags, so that other messages are skipped unread, and decides on the bytes
of the remaining messages: different tags can share a hash, and SQL92 needs properties. Parsing is
not cached here.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from strata_mq.filters.sql import SqlCondition, compile_sql
from strata_mq.filters.sql.stepwise import Stepwise, compile_stepwise
from strata_mq.layout.hashing import text_hash
from strata_mq.layout.stored_properties import PropertyReader, tag_of
from strata_mq.requests.errors import Code, RequestError

MAX_EXPRESSION_LENGTH = 65_536

_EVERYTHING = "*"
_SEPARATOR = "||"
_TAG_PROPERTY = "TAGS"
# Reading the properties, or the tag, of a message: as long as so many nodes of an expression.
_READING_STEPS = 32


class FilterKind(IntEnum):
    """How an expression is written; `strata.storage.v1.FilterKind`."""

    ALL = 1
    TAG = 2
    SQL = 3


class MessageFilter(Protocol):
    """Filter for the messages that a subscription wants."""

    @property
    def tag_hashes(self) -> frozenset[int] | None:
        """Hashes of the only tags that messages can have which match; None: any, or no tag."""

    @property
    def needs_messages(self) -> bool:
        """Whether most messages that the hashes let through must be read to know."""

    def matches(self, message: bytes) -> bool:
        """Whether a stored message is wanted."""

    def work(self, message: bytes) -> Generator[int, None, bool]:
        """Return the same in pieces, each of which tells before what it costs (`sql.stepwise`)."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags that a subscription wants; `tags` and `tag_hashes` None: every message."""

    tags: frozenset[str] | None
    tag_hashes: frozenset[int] | None

    @property
    def needs_messages(self) -> bool:
        """See `MessageFilter`."""
        return False

    def matches(self, message: bytes) -> bool:
        """See `MessageFilter`."""
        if self.tags is None:
            return True
        try:
            return tag_of(message) in self.tags
        except ValueError:
            return False

    def work(self, message: bytes) -> Generator[int, None, bool]:
        """See `MessageFilter`."""
        yield _READING_STEPS
        return self.matches(message)


class SqlFilter:
    """The condition on properties that a subscription sets."""

    __slots__ = ("_condition", "_reader", "_stepwise", "tag_hashes")

    def __init__(self, condition: SqlCondition) -> None:
        tags = condition.texts_of(_TAG_PROPERTY)
        self.tag_hashes = None if tags is None else frozenset(map(text_hash, tags))
        self._condition = condition
        # Made when it is needed: whoever checks expressions only evaluates none.
        self._stepwise: Stepwise | None = None
        self._reader = PropertyReader(condition.names)

    @property
    def needs_messages(self) -> bool:
        """See `MessageFilter`."""
        return True

    def matches(self, message: bytes) -> bool:
        """See `MessageFilter`."""
        try:
            return self._condition.evaluate(self._reader.read(message)) is True
        except ValueError:
            # A text that is no number, or bytes that are no message.
            return False

    def work(self, message: bytes) -> Generator[int, None, bool]:
        """See `MessageFilter`."""
        stepwise = self._stepwise
        if stepwise is None:
            stepwise = self._stepwise = compile_stepwise(self._condition.tree)
        yield _READING_STEPS
        try:
            return (yield from stepwise(self._reader.read(message))) is True
        except ValueError:
            return False


EVERYTHING = TagFilter(None, None)


def parse_filter(kind: FilterKind, expression: str) -> MessageFilter:
    """Parse an expression of any kind.

    Raises:
        RequestError: ILLEGAL_FILTER_EXPRESSION.
    """
    match kind:
        case FilterKind.ALL:
            return EVERYTHING
        case FilterKind.TAG:
            return parse_tag_expression(expression)
        case FilterKind.SQL:
            return SqlFilter(compile_sql(expression))


def wants_every_tag(expression: str) -> bool:
    """Whether a tag expression is `*` or "": most of them are."""
    return expression.strip() in ("", _EVERYTHING)


def parse_tag_expression(expression: str) -> TagFilter:
    """Parse `*`, "" or tags between `||`; blanks around tags and empty tags do not count.

    Raises:
        RequestError: ILLEGAL_FILTER_EXPRESSION: no tag at all, or longer than the limit.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise RequestError(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"filter expression is longer than {MAX_EXPRESSION_LENGTH}",
        )
    if wants_every_tag(expression):
        return EVERYTHING
    tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip()))
    if not tags:
        raise RequestError(
            Code.ILLEGAL_FILTER_EXPRESSION, f"filter expression [{expression}] names no tag"
        )
    return TagFilter(tags, frozenset(map(text_hash, tags)))
