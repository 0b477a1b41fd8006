"""Node ids that count how often one is looked up: a measure of work that no clock blurs."""

from __future__ import annotations


class CountedId(str):
    """See the module docstring."""

    looks = 0
    __slots__ = ()

    def __hash__(self) -> int:
        CountedId.looks += 1
        return super().__hash__()
