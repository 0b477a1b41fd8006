"""A copy of the metadata that is damaged on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_metadata.stored_copy import open_copy
from strata_state.metadata import MetadataStoreError
from strata_state.metadata_keys import MetadataRowKind, kind_range
from strata_state.metadata_rocksdb import RocksDbMetadataStore

KINDS = (MetadataRowKind.NODE, MetadataRowKind.SLOTS)
ROWS = [(bytes([MetadataRowKind.NODE]) + b"%06d" % number, b"v" * 50) for number in range(2_000)]


def filled(folder: Path) -> None:
    """Leave a copy whose rows are in a table file."""
    for _ in range(2):
        store = RocksDbMetadataStore(folder)
        store.write(ROWS)
        store.close()


def rows_of(folder: Path) -> list[tuple[bytes, bytes]]:
    store = open_copy(folder, KINDS)
    try:
        return list(store.scan(*kind_range(MetadataRowKind.NODE)))
    finally:
        store.close()


def damage(folder: Path) -> None:
    tables = list(folder.glob("*.sst"))
    assert tables, "nothing was flushed"
    for table in tables:
        data = bytearray(table.read_bytes())
        data[len(data) // 4] ^= 0xFF
        table.write_bytes(bytes(data))


def test_a_whole_copy_is_opened_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path / "metadata")
    assert rows_of(tmp_path / "metadata") == ROWS
    assert [folder.name for folder in tmp_path.iterdir()] == ["metadata"]


def test_a_damaged_copy_is_put_aside(tmp_path: Path) -> None:
    """It would end each start; nameservers have all of it. The newest damaged one stays."""
    for _ in range(2):
        filled(tmp_path / "metadata")
        damage(tmp_path / "metadata")
        assert rows_of(tmp_path / "metadata") == []
        assert sorted(each.name for each in tmp_path.iterdir()) == ["metadata", "metadata.damaged"]
    assert list((tmp_path / "metadata.damaged").glob("*.sst"))


def test_a_copy_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path / "metadata")
    first = open_copy(tmp_path / "metadata", KINDS)
    with pytest.raises(MetadataStoreError):
        open_copy(tmp_path / "metadata", KINDS)
    assert len(list(first.scan(*kind_range(MetadataRowKind.NODE)))) == len(ROWS)
    first.close()
