"""Bytes on the disk: frames, columns, footers and trailers as docs/data-layout.md has them."""

from __future__ import annotations

import struct
from typing import NoReturn

import google_crc32c
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata_seglog.columns import NO_CUT, EntryColumns
from strata_seglog.footer import (
    NO_CHECKPOINT,
    TRAILER_BYTES,
    Contents,
    FooterSection,
    decode_trailer,
    encode_trailer,
)
from strata_seglog.frames import (
    FLAG_MOVED,
    HEADER_BYTES,
    Frame,
    FrameKind,
    checkpoint_part,
    decode_hard_state,
    decode_header,
    encode_frames,
    hard_state_frame,
    payload_matches,
)

ROWS = st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40)


def test_a_header_has_the_documented_bytes() -> None:
    """Every field stands where section 2 of the data layout says."""
    frame = Frame(FrameKind.ENTRY, 0x1111, 0x22, 0x33, 0x44, 2, FLAG_MOVED, (b"ab", b"c"))
    (header, *payload), positions, end = encode_frames([frame], 1000, 900)
    assert payload == [b"ab", b"c"]
    assert (positions, end) == ([1000], 1000 + 72 + 3)
    expected = b"SMQF" + bytes([1, 1, 0, 1])
    expected += struct.pack(">QQQIIQQII", 1000, 900, 0x1111, 0x22, 3, 0x33, 0x44, 2, 0)
    expected += struct.pack(">I", google_crc32c.value(b"abc"))
    expected += struct.pack(">I", google_crc32c.value(expected))
    assert header == expected
    assert len(header) == HEADER_BYTES


def test_a_header_reads_back() -> None:
    """Decoding gives the encoded frame, at its own position only."""
    frame = Frame(FrameKind.CHECKPOINT, 7, 8, 9, 10, payload=(b"abcd",))
    buffers, _, _ = encode_frames([frame], 5, 3)
    data = b"..." + b"".join(buffers)
    header = decode_header(data, 3, 5)
    assert header is not None
    assert (header.kind, header.replica_id, header.raft_group) == (3, 7, 8)
    assert (header.term, header.index, header.synced_before) == (9, 10, 3)
    assert payload_matches(header, b"abcd")
    assert not payload_matches(header, b"abce")
    assert not payload_matches(header, b"abc")
    assert decode_header(data, 3, 6) is None
    assert decode_header(data[:-5], 3, 5) is None


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_changed_header_is_none(byte: int) -> None:
    """No bit of a header can change unnoticed."""
    buffers, _, _ = encode_frames([Frame(FrameKind.ENTRY, 7, 8, 9, 10)], 5, 3)
    for bit in range(8):
        data = bytearray(b"".join(buffers))
        data[byte] ^= 1 << bit
        assert decode_header(bytes(data), 0, 5) is None


def test_hard_states_and_checkpoint_parts() -> None:
    """Their payloads read back; too short a checkpoint part is refused."""
    frame = hard_state_frame(1, 2, 3, 4, 5)
    assert (frame.term, decode_hard_state(frame.payload[0])) == (3, (4, 5))
    assert checkpoint_part((b"\x01\x00\x00\x07rest",)) == (7, False)
    assert checkpoint_part((b"\x01", b"\x01\x00\x02")) == (2, True)
    with pytest.raises(ValueError, match="begins with"):
        checkpoint_part((b"\x01\x00",))


def _columns(rows: list[tuple[int, bool]]) -> EntryColumns:
    columns = EntryColumns()
    for at, (index, moved) in enumerate(rows):
        columns.append(index, index + 5, at * 100, at % 3, moved=moved)
    return columns


@given(rows=ROWS)
def test_columns_leave_what_rule_9_leaves(rows: list[tuple[int, bool]]) -> None:
    """The live rows are those of a dictionary that drops all >= i before it takes i."""
    live: dict[int, int] = {}
    cut = NO_CUT
    for at, (index, moved) in enumerate(rows):
        if not moved:
            live = {each: row for each, row in live.items() if each < index}
            cut = min(cut, index)
        live[index] = at
    columns = _columns(rows)
    assert list(columns.live()) == [(index, live[index] * 100) for index in sorted(live)]
    assert [columns.find(index) for index in range(32)] == [live.get(i, -1) for i in range(32)]
    assert columns.cut == cut


@given(rows=ROWS)
def test_columns_read_back(rows: list[tuple[int, bool]]) -> None:
    """Encoding keeps all rows, live or not, and what is live."""
    columns = _columns(rows)
    read = EntryColumns.decode(memoryview(columns.encode()), len(rows))
    assert list(read.live()) == list(columns.live())
    assert read.cut == columns.cut
    assert [read.entry_kind(row) for row in range(len(rows))] == [at % 3 for at in range(len(rows))]
    assert read.encode() == columns.encode()


def test_columns_are_read_back_a_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment with moved rows before its new ones is not replayed row by row."""
    moved = [(100 * number + at, True) for number in range(10) for at in range(50)]
    rows = [*moved, *((index, False) for index in range(1_000, 3_000))]
    data = _columns(rows).encode()
    stretches: list[int] = []
    take_rows = EntryColumns._take_rows

    def counted(columns: EntryColumns, start: int, end: int, *, moved: bool) -> None:
        stretches.append(end - start)
        take_rows(columns, start, end, moved=moved)

    def never(*_: object, **__: object) -> NoReturn:
        pytest.fail("a row was taken by itself")

    monkeypatch.setattr(EntryColumns, "_take_rows", counted)
    for name in ("append", "_supersede", "_take_moved_row"):
        monkeypatch.setattr(EntryColumns, name, never)
    read = EntryColumns.decode(memoryview(data), len(rows))
    assert stretches == [len(moved), 2_000]
    assert [index for index, _ in read.live()] == [index for index, _ in rows]


@given(rows=ROWS, first=st.integers(0, 32), last=st.integers(0, 32))
@example(rows=[(3, False), (5, False)], first=3, last=9)  # a hole
def test_columns_find_runs_and_terms(rows: list[tuple[int, bool]], first: int, last: int) -> None:
    """Neighbours are found up to a hole, and every live row is in a run of its term."""
    built = _columns(rows)
    for columns in (built, EntryColumns.decode(memoryview(built.encode()), len(rows))):
        live = dict(columns.live())
        wanted = []
        for index in range(first, last + 1):
            if index not in live:
                break
            wanted.append(live[index])
        offsets, terms = columns.located_from(first, last)
        assert offsets == wanted
        assert terms == [first + 5 + number for number in range(len(wanted))]
        assert columns.term_runs() == tuple((index, index + 5) for index in sorted(live))


@settings(max_examples=50)
@given(sections=st.dictionaries(st.integers(1, 1 << 63), ROWS, max_size=5))
def test_footers_read_back(sections: dict[int, list[tuple[int, bool]]]) -> None:
    """A footer gives back every section; its length is known before it is made."""
    contents = Contents(4096)
    for replica_id, rows in sections.items():
        contents.sections[replica_id] = FooterSection(
            replica_id,
            3,
            replica_id % 3 == 0,
            replica_id % 3 == 1,
            4,
            5,
            6,
            7,
            NO_CHECKPOINT,
            columns=_columns(rows),
        )
        contents.rows += len(rows)
    payload = b"".join(contents.encode())
    assert len(payload) == contents.payload_bytes
    read = Contents.decode(4096, payload)
    assert (read.base, read.rows) == (4096, contents.rows)
    for replica_id, section in contents.sections.items():
        other = read.sections[replica_id]
        assert (other.removed, other.returned) == (section.removed, section.returned)
        assert (other.term, other.vote, other.commit, other.checkpoint) == (4, 5, 6, 7)
        assert list(other.columns.live()) == list(section.columns.live())


def test_trailers_read_back() -> None:
    """A trailer is 24 bytes; any change makes it none."""
    trailer = encode_trailer(12_345, 678)
    assert len(trailer) == TRAILER_BYTES
    assert decode_trailer(trailer) == (12_345, 678)
    for byte in range(TRAILER_BYTES):
        changed = bytearray(trailer)
        changed[byte] ^= 4
        assert decode_trailer(bytes(changed)) is None
    assert decode_trailer(b"") is None
