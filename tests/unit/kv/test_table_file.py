"""The file of an exported table: equal tables are equal files, damage is found."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_kv.model import Item
from strata_kv.table_file import TableFileError, TableSummary, read_table, write_table

ITEMS = [Item(b"%04d" % n, b"v" * (n % 50), n + 1, 3, 4, n % 3) for n in range(2_000)]


def read(data: bytes) -> tuple[list[Item], TableSummary]:
    *parts, summary = read_table(io.BytesIO(data))
    assert isinstance(summary, TableSummary)
    return [item for part in parts for item in part if isinstance(item, Item)], summary


def written(items: list[Item]) -> tuple[bytes, TableSummary]:
    file = io.BytesIO()
    summary = write_table(file, items)
    return file.getvalue(), summary


@pytest.mark.parametrize(
    "items", [[], ITEMS[:1], ITEMS, [Item(b"k", b"v" * 3_000_000, 1, 0, 0, 0)]]
)
def test_what_was_written_is_read(items: list[Item]) -> None:
    """Key, value, version and end survive; revisions are of the table, not of the file."""
    data, summary = written(items)
    back, found = read(data)
    assert back == [item._replace(create_revision=0, modify_revision=0) for item in items]
    assert found == summary
    assert (summary.items, summary.size_bytes) == (len(items), len(data))


def test_equal_tables_of_other_revisions_are_equal_files() -> None:
    """An import into another cluster exports the same bytes again."""
    elsewhere = [item._replace(create_revision=70, modify_revision=80) for item in ITEMS]
    assert written(ITEMS) == written(elsewhere)


@given(st.data())
def test_no_changed_or_missing_byte_goes_unseen(data: st.DataObject) -> None:
    """A flipped bit, a cut and a longer file are errors, wherever they are."""
    whole, _ = written(ITEMS[:300])
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for broken in (bytes(flipped), whole[:at], whole + b"\0"):
        if broken[5:8] != whole[5:8] and broken[:5] == whole[:5] and broken[8:] == whole[8:]:
            # Reserved bytes of the head say nothing.
            continue
        with pytest.raises(TableFileError):
            read(broken)
