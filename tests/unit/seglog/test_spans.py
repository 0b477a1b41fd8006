"""The table of spans finds what a search from the newest segment to the oldest finds (rule 9)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata_seglog.columns import NO_CUT
from strata_seglog.spans import ReplicaSpan, SpanTable

LAST = 40


@st.composite
def spans_of_segments(draw: st.DrawFn) -> tuple[ReplicaSpan, ...]:
    """Return what one replica has in some segments: runs with gaps, cuts, moved copies."""
    spans = []
    for base in range(draw(st.integers(0, 8))):
        bounds = sorted(draw(st.sets(st.integers(0, LAST), max_size=8)))
        runs = tuple((first, last - 1) for first, last in pairwise(bounds))
        kept = tuple(run for run in runs if draw(st.booleans()))
        cut = draw(st.one_of(st.just(NO_CUT), st.integers(0, LAST)))
        spans.append(ReplicaSpan(base, kept, (), cut, 0, 0))
    return tuple(spans)


def searched(spans: tuple[ReplicaSpan, ...], index: int) -> ReplicaSpan | None:
    """Return the span that serves an index, found step by step."""
    for span in reversed(spans):
        if any(first <= index <= last for first, last in span.runs):
            return span
        if span.cut <= index:
            return None
    return None


def test_a_new_suffix_ends_what_older_segments_hold() -> None:
    """Entries from the cut on are gone, whatever comes after it."""
    older = ReplicaSpan(0, ((1, 10),), (), NO_CUT, 0, 0)
    newer = ReplicaSpan(1, ((5, 5),), (), 5, 0, 0)
    table = SpanTable((older, newer))
    assert table.find(4) == (1, 4, older)
    assert table.find(5) == (5, 5, newer)
    assert table.find(7) is None


@given(spans=spans_of_segments())
def test_each_entry_is_found_where_a_search_finds_it(spans: tuple[ReplicaSpan, ...]) -> None:
    """And a piece goes as far as one segment serves what follows, or ends at its run's end."""
    table = SpanTable(spans)
    for index in range(-1, LAST + 2):
        piece = table.find(index)
        assert (piece.span if piece else None) is searched(spans, index)
        if piece is not None:
            served = [searched(spans, each) for each in range(piece.first, piece.last + 1)]
            assert piece.first <= index <= piece.last
            assert all(each is piece.span for each in served)
            (run,) = (run for run in piece.span.runs if run[0] <= index <= run[1])
            assert piece.last == run[1] or searched(spans, piece.last + 1) is not piece.span


@given(spans=spans_of_segments(), known=st.integers(0, 8), dropped=st.integers(0, 8))
def test_a_table_follows_its_spans(
    spans: tuple[ReplicaSpan, ...], known: int, dropped: int
) -> None:
    """Segments come at the end and go anywhere; the table before stays as it was."""
    before = SpanTable(spans[:known])
    left = tuple(span for span in spans if span.base != dropped)
    for now in (spans, left):
        table = before.following(now)
        for index in range(LAST + 1):
            assert table.find(index) == SpanTable(now).find(index)
            assert before.find(index) == SpanTable(spans[:known]).find(index)
