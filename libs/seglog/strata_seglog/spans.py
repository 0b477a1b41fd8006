"""The sealed segment that serves each entry of a replica: rule 9 over all spans, as one table.

A newer segment decides about an index that it holds, or that it cut off, whatever older ones hold.
A search through them would cost each look-up as many steps as there are segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

Run = tuple[int, int]
"""First and last index of entries without a gap."""


@dataclass(frozen=True, slots=True)
class ReplicaSpan:
    """One replica in one segment: its live entries there, and what it ends in earlier ones.

    `terms`: (first index, term) of each run of live entries of one term, so that terms are known
    without the footer; empty in the active segment, whose columns are in memory.
    """

    base: int
    runs: tuple[Run, ...]
    terms: tuple[tuple[int, int], ...]
    cut: int
    checkpoint: int
    open_checkpoint: int


class Piece(NamedTuple):
    """Entries that follow each other and are all served by one segment."""

    first: int
    last: int
    span: ReplicaSpan


class SpanTable:
    """The pieces of all spans, ascending and without overlaps; immutable for its readers.

    Args:
        spans: of sealed segments, oldest first.
    """

    __slots__ = ("_pieces", "spans")

    def __init__(self, spans: tuple[ReplicaSpan, ...] = ()) -> None:
        self.spans = spans
        self._pieces: list[Piece] = []
        for span in spans:
            self._lay(span)

    def following(self, spans: tuple[ReplicaSpan, ...]) -> SpanTable:
        """Return the table of `spans`, which mostly have one more at their end."""
        known = len(self.spans)
        if spans[:known] != self.spans:
            return SpanTable(spans)
        table = SpanTable()
        table.spans, table._pieces = spans, self._pieces[:]
        for span in spans[known:]:
            table._lay(span)
        return table

    def find(self, index: int) -> Piece | None:
        """Return the piece with an index; None: no sealed segment has it."""
        pieces = self._pieces
        at = bisect_right(pieces, index, key=_first_of) - 1
        return pieces[at] if at >= 0 and index <= pieces[at].last else None

    def _lay(self, span: ReplicaSpan) -> None:
        """Put a newer span over the others: first what it cuts off, then what it holds."""
        pieces = self._pieces
        while pieces and pieces[-1].first >= span.cut:
            pieces.pop()
        if pieces and pieces[-1].last >= span.cut:
            pieces[-1] = pieces[-1]._replace(last=span.cut - 1)
        if not pieces or not span.runs or pieces[-1].last < span.runs[0][0]:
            # The usual case: nothing lies under them.
            pieces += [Piece(first, last, span) for first, last in span.runs]
            return
        # All runs in one pass: a segment with moved copies may have very many.
        lowest = bisect_left(pieces, span.runs[0][0], key=_last_of)
        under, laid, at = pieces[lowest:], list[Piece](), 0
        for first, last in span.runs:
            begin = bisect_left(under, first, lo=at, key=_last_of)
            laid += under[at:begin]
            at = bisect_right(under, last, lo=begin, key=_first_of)
            if begin < at and under[begin].first < first:
                laid.append(under[begin]._replace(last=first - 1))
            if begin < at and under[at - 1].last > last:
                at -= 1
                under[at] = under[at]._replace(first=last + 1)
            laid.append(Piece(first, last, span))
        pieces[lowest:] = laid + under[at:]


def _first_of(piece: Piece) -> int:
    return piece.first


def _last_of(piece: Piece) -> int:
    return piece.last
