"""The contract of `strata_kv.ports.ItemEngine`, over both engines and both row stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_kv.memory_engine import MemoryEngine
from strata_kv.ports import ItemEngine
from strata_kv.store_engine import StoreEngine
from strata_state.memory_store import MemoryStore
from strata_state.ports import RowBatch, StateStore
from strata_state.rocksdb_store import RocksdbStore

RAFT_GROUP, TABLE, OTHER_TABLE = 7, 3, 4

ENGINES: dict[str, Callable[[StateStore, int], ItemEngine]] = {
    "store": StoreEngine,
    "memory": MemoryEngine,
}


class Under:
    """An engine and its store."""

    def __init__(self, store: StateStore, kind: str) -> None:
        self.store = store
        self.kind = kind
        self.engine = ENGINES[kind](store, RAFT_GROUP)

    def change(self, *work: Callable[[RowBatch], None]) -> None:
        batch = self.store.new_batch()
        for step in work:
            step(batch)
        self.store.write(batch)
        self.engine.written()

    def put(self, *items: tuple[bytes, bytes], table_id: int = TABLE) -> None:
        def step(batch: RowBatch) -> None:
            for key, row in items:
                self.engine.put(batch, table_id, key, row)

        self.change(step)

    def delete(self, key: bytes) -> None:
        self.change(lambda batch: self.engine.delete(batch, TABLE, key))

    def settle(self) -> bool:
        batch = self.store.new_batch()
        had_more = self.engine.settle(batch)
        self.store.write(batch)
        self.engine.settled()
        return had_more

    def reopened(self) -> ItemEngine:
        return ENGINES[self.kind](self.store, RAFT_GROUP)


@pytest.fixture(params=[("store", "rocksdb"), ("store", "memory"), ("memory", "rocksdb")])
def under(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Under]:
    kind, store_kind = request.param
    store: StateStore = (
        MemoryStore() if store_kind == "memory" else RocksdbStore(tmp_path / "state")
    )
    yield Under(store, kind)
    store.close()


def test_an_item_is_read_after_written_and_not_of_another_table(under: Under) -> None:
    """A put item shows with its key and table, and with nothing else."""
    under.put((b"a", b"1"), (b"", b"no key"))
    engine = under.engine
    assert (engine.get(TABLE, b"a"), engine.get(TABLE, b"")) == (b"1", b"no key")
    assert (engine.get(TABLE, b"b"), engine.get(OTHER_TABLE, b"a")) == (None, None)


def test_what_was_forgotten_never_shows(under: Under) -> None:
    """A batch that was not written leaves no trace."""
    under.put((b"a", b"1"))
    batch = under.store.new_batch()
    under.engine.put(batch, TABLE, b"a", b"2")
    under.engine.delete(batch, TABLE, b"a")
    under.engine.forget()
    under.change()
    assert under.engine.get(TABLE, b"a") == b"1"


def test_a_scan_is_in_key_order_within_its_range_and_limit(under: Under) -> None:
    """Begin is in it, end is not, b"" is open, other tables never show."""
    under.put((b"b", b"2"), (b"a", b"1"), (b"\xff\xff", b"4"), (b"c\0", b"3"))
    under.put((b"b", b"x"), table_id=OTHER_TABLE)
    scan = under.engine.scan
    everything = [(b"a", b"1"), (b"b", b"2"), (b"c\0", b"3"), (b"\xff\xff", b"4")]
    assert list(scan(TABLE, b"", b"")) == everything
    assert list(scan(TABLE, b"b", b"c\0")) == [(b"b", b"2")]
    assert list(scan(TABLE, b"b", b"", 2)) == everything[1:3]
    assert list(scan(TABLE, b"c", b"b")) == []


def test_a_scan_shows_items_as_of_its_call(under: Under) -> None:
    """Changes made while a scan is driven do not show: an export is of one revision."""
    under.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    scan = under.engine.scan(TABLE, b"", b"")
    first = next(scan)
    under.put((b"bb", b"new"), (b"c", b"new"))
    under.delete(b"b")
    assert [first, *scan] == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_dropped_table_is_empty_and_can_be_filled_again(under: Under) -> None:
    """A drop takes what is there and what was staged before it, of this table only."""
    under.put((b"a", b"1"), (b"b", b"2"))
    under.put((b"a", b"x"), table_id=OTHER_TABLE)
    under.change(
        lambda batch: under.engine.put(batch, TABLE, b"c", b"3"),
        lambda batch: under.engine.drop(batch, TABLE),
    )
    assert list(under.engine.scan(TABLE, b"", b"")) == []
    assert under.engine.get(OTHER_TABLE, b"a") == b"x"
    under.put((b"b", b"again"))
    assert list(under.engine.scan(TABLE, b"", b"")) == [(b"b", b"again")]


def test_a_settled_store_gives_the_same_items_to_a_new_engine(under: Under) -> None:
    """After settling, puts and deletes are all in the store; then nothing is left to settle."""
    under.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    under.settle()
    under.put((b"a", b"new"))
    under.delete(b"c")
    under.settle()
    assert list(under.reopened().scan(TABLE, b"", b"")) == [(b"a", b"new"), (b"b", b"2")]
    assert under.settle() is False


def test_a_reload_shows_what_the_store_has(under: Under) -> None:
    """A snapshot replaces the rows behind the engine's back."""
    under.put((b"a", b"1"), (b"b", b"2"))
    under.settle()
    batch = under.store.new_batch()
    StoreEngine(under.store, RAFT_GROUP).put(batch, TABLE, b"a", b"of the snapshot")
    under.store.write(batch)
    under.engine.reload()
    assert under.engine.get(TABLE, b"a") == b"of the snapshot"


keys = st.binary(max_size=3)


@given(st.lists(st.tuples(keys, st.none() | st.binary(max_size=4)), max_size=40), keys, keys)
@pytest.mark.parametrize("kind", sorted(ENGINES))
def test_an_engine_is_a_sorted_dictionary(
    kind: str, changes: list[tuple[bytes, bytes | None]], begin: bytes, end: bytes
) -> None:
    """Reads agree with a dictionary after any puts and deletions in any order."""
    under = Under(MemoryStore(), kind)
    model: dict[bytes, bytes] = {}
    for number, (key, row) in enumerate(changes):
        if row is None:
            model.pop(key, None)
            under.delete(key)
        else:
            model[key] = row
            under.put((key, row))
        if number % 7 == 0:
            under.settle()
    expected = [(k, model[k]) for k in sorted(model) if k >= begin and (not end or k < end)]
    assert list(under.engine.scan(TABLE, begin, end)) == expected
    assert {key: under.engine.get(TABLE, key) for key in model} == model
