"""Tag filters of subscriptions.

A filter names hashes, by which a pop passes over messages without reading them, and the tags
themselves, because different tags can have one hash. Parsing is not cached here.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_mq.errors import Code, RequestError
from strata_mq.hashing import text_hash

MAX_EXPRESSION_LENGTH = 65_536

_EVERYTHING = "*"
_SEPARATOR = "||"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags a subscription wants; `tags` and `hashes` None: every message."""

    tags: frozenset[str] | None
    hashes: frozenset[int] | None

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag (None or "": without one) is wanted."""
        return self.tags is None or (bool(tag) and tag in self.tags)


EVERYTHING = TagFilter(None, None)


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
    stripped = expression.strip()
    if stripped in ("", _EVERYTHING):
        return EVERYTHING
    tags = frozenset(tag for part in stripped.split(_SEPARATOR) if (tag := part.strip()))
    if not tags:
        raise RequestError(
            Code.ILLEGAL_FILTER_EXPRESSION, f"filter expression [{expression}] names no tag"
        )
    return TagFilter(tags, frozenset(map(text_hash, tags)))
