"""Checkpoint frames (docs/data-layout.md section 6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.layout.rows import AppliedRow
from strata_seglog.frames import FrameKind, checkpoint_part
from strata_storage.upkeep import checkpoint
from strata_storage.upkeep.checkpoint import CheckpointError, decode_checkpoint, encode_checkpoint

APPLIED = AppliedRow(42, 3, 1_000)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.binary(max_size=200))))
def test_rows_come_back_as_they_were(rows: list[tuple[bytes, bytes]]) -> None:
    """Also none at all: one part, marked as the last."""
    frames = list(encode_checkpoint(rows, 1, 101, APPLIED))
    found = [row for frame in frames for row in decode_checkpoint(b"".join(frame.payload))]
    assert found == rows


def test_many_rows_take_several_parts_of_which_the_last_is_marked() -> None:
    """Parts are numbered from 0, about 1 MiB each."""
    rows = [(b"%08d" % number, b"v" * 1_000) for number in range(3_000)]
    frames = list(encode_checkpoint(rows, 1, 101, APPLIED))
    parts = [checkpoint_part(frame.payload) for frame in frames]
    assert parts == [(0, False), (1, False), (2, True)]
    assert {(frame.kind, frame.index, frame.term) for frame in frames} == {
        (FrameKind.CHECKPOINT, 42, 3)
    }
    assert [row for f in frames for row in decode_checkpoint(b"".join(f.payload))] == rows


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_a_part_that_does_not_add_up_is_refused(cut: int) -> None:
    """Bytes missing or too many are an error, never fewer rows."""
    (frame,) = encode_checkpoint([(b"key", b"value"), (b"k2", b"v2")], 1, 101, APPLIED)
    payload = b"".join(frame.payload)
    for damaged in (payload[:-cut], payload + b"x" * cut):
        with pytest.raises(CheckpointError):
            list(decode_checkpoint(damaged))


def test_parts_of_very_many_rows_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers have two bytes: tables may have more rows than parts of 1 MiB can hold."""
    monkeypatch.setattr(checkpoint, "_LARGE_FROM", 2)
    monkeypatch.setattr(checkpoint, "_PARTS_MAX", 4)
    rows = [(b"%08d" % number, b"v" * 1_000) for number in range(7_500)]
    frames = list(encode_checkpoint(rows, 1, 101, APPLIED))
    assert [checkpoint_part(frame.payload) for frame in frames] == [
        *((0, False), (1, False), (2, False), (3, True))
    ]
    assert [row for f in frames for row in decode_checkpoint(b"".join(f.payload))] == rows
    with pytest.raises(CheckpointError):
        list(encode_checkpoint(rows * 2, 1, 101, APPLIED))
