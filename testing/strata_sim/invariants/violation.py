"""The error of all checkers."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold; the text says which and by what."""
