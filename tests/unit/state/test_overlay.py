"""Changes on top of a store: reads show both, the store keeps what it had."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_state.memory_store import MemoryStore
from strata_state.overlay import Overlay
from strata_state.ports import RowBatch

KEYS = st.binary(max_size=3).map(lambda key: bytes(byte % 3 or 255 * (byte % 2) for byte in key))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=2)),
        st.tuples(st.just("delete"), KEYS, st.just(b"")),
        st.tuples(st.just("delete_range"), KEYS, KEYS),
    ),
    max_size=20,
)
END = b"\xff" * 8


def write(batch: RowBatch, changes: list[tuple[str, bytes, bytes]]) -> RowBatch:
    for change, key, value in changes:
        match change:
            case "put":
                batch.put(key, value)
            case "delete":
                batch.delete(key)
            case _:
                batch.delete_range(key, value)
    return batch


@given(before=CHANGES, batches=st.lists(CHANGES, max_size=3), keys=st.tuples(KEYS, KEYS))
def test_it_reads_as_a_store_that_took_the_changes(
    before: list[tuple[str, bytes, bytes]],
    batches: list[list[tuple[str, bytes, bytes]]],
    keys: tuple[bytes, bytes],
) -> None:
    """It holds for any puts and removals; the store below stays as it was."""
    base, written = MemoryStore(), MemoryStore()
    for store in (base, written):
        store.write(write(store.new_batch(), before))
    as_it_was, overlay = list(base.scan(b"", END)), Overlay(base)
    for changes in batches:
        overlay.write(write(overlay.new_batch(), changes))
        written.write(write(written.new_batch(), changes))
    first, key = keys
    assert list(overlay.scan(first, END)) == list(written.scan(first, END))
    assert list(overlay.scan(b"", key)) == list(written.scan(b"", key))
    assert overlay.get(key) == written.get(key)
    assert overlay.last_before(first, key) == written.last_before(first, key)
    assert list(base.scan(b"", END)) == as_it_was
