"""Every metadata store keeps these promises, in memory and in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata_state.metadata import MetadataStore, MetadataStoreError
from strata_state.metadata_keys import (
    APPLIED_KEY,
    MetadataRowKind,
    change_key,
    consumer_group_key,
    kind_of,
    kind_range,
    names_of,
    topic_key,
)
from strata_state.metadata_rocksdb import MetadataStoreOptions, RocksDbMetadataStore
from strata_testing.metadata_store import MemoryMetadataStore


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    opened: MetadataStore = (
        MemoryMetadataStore()
        if request.param == "memory"
        else RocksDbMetadataStore(tmp_path / "meta")
    )
    yield opened
    opened.close()


def test_a_written_row_is_read_back(store: MetadataStore) -> None:
    """A read gives the row that was written last; a row never written is None."""
    store.write([(b"\x01a", b"one")])
    store.write([(b"\x01a", b"two")])

    assert store.get(b"\x01a") == b"two"
    assert store.get(b"\x01b") is None


def test_deleting_removes_and_is_harmless_when_absent(store: MetadataStore) -> None:
    """A batch deletes and writes at once; deleting an absent row is no error."""
    store.write([(b"\x01a", b"1"), (b"\x01b", b"2")])
    store.write([(b"\x01c", b"3")], [b"\x01a", b"\x01never"])

    assert list(store.scan(b"\x01", b"\x02")) == [(b"\x01b", b"2"), (b"\x01c", b"3")]


def test_frozen_rows_stay_as_they_were(store: MetadataStore) -> None:
    """Later writes and deletions do not show, however often the frozen rows are read."""
    store.write([(b"\x01a", b"1"), (b"\x01b", b"2"), (b"\x02c", b"3")])
    frozen = store.frozen()
    store.write([(b"\x01a", b"new"), (b"\x01d", b"4")], [b"\x01b"])

    before = [(b"\x01a", b"1"), (b"\x01b", b"2")]
    assert list(frozen.scan(b"\x01", b"\x02")) == before
    assert list(frozen.scan(b"\x01b", b"\x02")) == before[1:]
    frozen.close()
    assert list(store.scan(b"\x01", b"\x02")) == [(b"\x01a", b"new"), (b"\x01d", b"4")]


def test_a_scan_is_sorted_and_bounded(store: MetadataStore) -> None:
    """A scan gives exactly the rows of its range in key order, empty values included."""
    store.write([(bytes([kind, n]), b"") for kind in (3, 1, 2) for n in (9, 0, 255)])

    assert [key for key, _ in store.scan(*kind_range(MetadataRowKind.CONSUMER_GROUP))] == [
        b"\x02\x00",
        b"\x02\x09",
        b"\x02\xff",
    ]


def test_a_scan_is_a_snapshot(store: MetadataStore) -> None:
    """Rows written or deleted after the call do not show in a scan under way."""
    store.write([(b"\x01a", b"1"), (b"\x01b", b"2")])
    scan = store.scan(b"\x01", b"\x02")
    store.write([(b"\x01c", b"3")], [b"\x01b"])

    assert list(scan) == [(b"\x01a", b"1"), (b"\x01b", b"2")]


def test_values_are_any_bytes(store: MetadataStore) -> None:
    """Zero bytes and a value of a megabyte come back as they were."""
    value = bytes(range(256)) * 4096
    store.write([(b"\x01\x00\x00", value)])

    assert store.get(b"\x01\x00\x00") == value


def test_rocksdb_keeps_rows_over_reopening(tmp_path: Path) -> None:
    """Batches written before a close are there after it, applied row and rows alike."""
    first = RocksDbMetadataStore(tmp_path)
    first.write([(APPLIED_KEY, b"7"), (topic_key("", "orders"), b"row")])
    first.close()

    second = RocksDbMetadataStore(tmp_path)
    assert list(second.scan(b"\x00", b"\xff")) == [
        (APPLIED_KEY, b"7"),
        (topic_key("", "orders"), b"row"),
    ]
    second.close()


def test_damaged_files_are_a_named_error(tmp_path: Path) -> None:
    """A database whose list of files is gone is refused with its folder and the reason."""
    RocksDbMetadataStore(tmp_path).close()
    for manifest in tmp_path.glob("MANIFEST-*"):
        manifest.unlink()
    with pytest.raises(MetadataStoreError, match=str(tmp_path)):
        RocksDbMetadataStore(tmp_path)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(st.sets(st.binary(min_size=1, max_size=3)), st.sets(st.binary(max_size=3))),
        max_size=8,
    )
)
def test_both_adapters_agree(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[set[bytes], set[bytes]]]
) -> None:
    """The same batches leave the same rows in memory and in RocksDB."""
    memory = MemoryMetadataStore()
    rocksdb = RocksDbMetadataStore(tmp_path_factory.mktemp("meta"))
    for number, (puts, deletes) in enumerate(steps):
        rows = [(key, str(number).encode()) for key in sorted(puts)]
        for store in (memory, rocksdb):
            store.write(rows, sorted(deletes - puts))
    everything = (b"", b"\xff" * 4)
    assert list(rocksdb.scan(*everything)) == list(memory.scan(*everything))
    rocksdb.close()


def test_keys_name_rows() -> None:
    """A key gives back its kind and names, and names never mix between namespaces."""
    key = topic_key("shop", "orders")

    assert (kind_of(key), names_of(key)) == (MetadataRowKind.TOPIC, ("shop", "orders"))
    assert names_of(consumer_group_key("", "g")) == ("", "g")
    assert topic_key("a", "bc") != topic_key("ab", "c")
    assert change_key(255) < change_key(256) < change_key(1 << 40)


def test_damaged_files_are_found_and_nothing_is_left_out(tmp_path: Path) -> None:
    """A flipped byte in a table file is no end of the rows: topics behind it would be gone."""
    first = RocksDbMetadataStore(tmp_path / "meta", MetadataStoreOptions(memtable_bytes=64 * 1024))
    count = 5_000
    for begin in range(0, count, 500):
        first.write([(b"\x01%06d" % at, b"v" * 100) for at in range(begin, begin + 500)])
    first.close()
    tables = sorted((tmp_path / "meta").glob("*.sst"))
    assert tables, "nothing was flushed"
    for table in tables:
        data = bytearray(table.read_bytes())
        for at in range(len(data) // 4, len(data) // 2, 500):
            data[at] ^= 0xFF
        table.write_bytes(bytes(data))

    second = RocksDbMetadataStore(tmp_path / "meta")
    with pytest.raises(MetadataStoreError, match="cannot be read"):
        list(second.scan(*kind_range(MetadataRowKind.TOPIC)))
    frozen = second.frozen()
    with pytest.raises(MetadataStoreError, match="cannot be read"):
        list(frozen.scan(b"\x01", b"\x02"))
    with pytest.raises(MetadataStoreError, match="cannot be read"):
        for at in range(count):
            second.get(b"\x01%06d" % at)
    frozen.close()
    second.close()
