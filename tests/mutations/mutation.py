"""One mistake, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        name: short and unique.
        rule: number of the rule that it breaks.
        file: relative to the repository.
        old: the place; it is there exactly once.
        new: what stands there instead.
        tests: arguments of pytest: those that must fail.
        finds: pattern of what the failing test says.
    """

    name: str
    rule: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    finds: str
