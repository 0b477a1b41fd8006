"""Turns of pieces of work when there is not room for all at once (rule 39)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key", int, tuple[int, int])


def in_turn(keys: Iterable[Key], last: Key | None) -> list[Key]:
    """Return keys in order, beginning after the one of which work was begun last; None: of none.

    Those that fail and are due again at once come after all others, so that they starve none.
    """
    if last is None:
        return sorted(keys)
    return sorted(keys, key=lambda key: (key <= last, key))
