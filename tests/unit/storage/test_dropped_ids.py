"""Dropped ids are known by runs: few, however many were dropped."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands import DropKind
from strata_mq.layout import RowKind, encode_tombstone, tombstone_key
from strata_state.memory_store import MemoryStore
from strata_state.rows import GroupRows
from strata_storage.rows.dropped_ids import DroppedIds

RAFT_GROUP = 3
KINDS = (DropKind.TOPIC, DropKind.CONSUMER_GROUP)
IDS = range(30)


def rows_of(store: MemoryStore) -> GroupRows:
    return GroupRows(store, RAFT_GROUP)


def drop(store: MemoryStore, ids: DroppedIds, dropped: Iterable[tuple[int, int]]) -> None:
    for number, (what, dropped_id) in enumerate(dropped):
        batch = store.new_batch()
        ids.add(batch, what, dropped_id, 1_000 + number)
        store.write(batch)


def known(ids: DroppedIds) -> set[tuple[int, int]]:
    return {(what, number) for what in KINDS for number in IDS if (what, number) in ids}


def tombstones(store: MemoryStore) -> dict[bytes, bytes]:
    return {key: value for key, value in rows_of(store).all() if key[4] == RowKind.TOMBSTONE}


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(IDS)), max_size=60))
def test_runs_know_the_same_ids_as_a_set(dropped: list[tuple[DropKind, int]]) -> None:
    """In any order, with repeats, and after a start, too; runs that meet are one."""
    store = MemoryStore()
    ids = DroppedIds(rows_of(store).tombstones)
    drop(store, ids, dropped)
    assert known(ids) == set(dropped)
    gaps = sum((what, number + 1) not in ids for what, number in set(dropped))
    assert len(ids) == gaps == len(tombstones(store))
    again = DroppedIds(rows_of(store).tombstones)
    assert (known(again), len(again)) == (known(ids), len(ids))


def test_a_thousand_dropped_topics_beside_one_that_lives_are_two_rows() -> None:
    """Topics that are created, deleted and created again leave nothing that grows."""
    store = MemoryStore()
    ids = DroppedIds(rows_of(store).tombstones)
    drop(store, ids, [(DropKind.TOPIC, number) for number in range(1, 1_002) if number != 500])
    assert len(tombstones(store)) == 2
    assert (DropKind.TOPIC, 500) not in ids
    assert (DropKind.TOPIC, 499) in ids
    assert (DropKind.CONSUMER_GROUP, 499) not in ids


def test_rows_of_older_versions_name_one_id_each() -> None:
    """They are read; a single id has the same row as before."""
    store = MemoryStore()
    batch = store.new_batch()
    for number in (4, 5, 6, 9):
        key = tombstone_key(RAFT_GROUP, DropKind.TOPIC, number)
        batch.put(key, (7_000 + number).to_bytes(8, "big"))
    store.write(batch)
    ids = DroppedIds(rows_of(store).tombstones)
    assert known(ids) == {(DropKind.TOPIC, number) for number in (4, 5, 6, 9)}
    assert len(ids) == 2
    drop(store, ids, [(DropKind.TOPIC, 7), (DropKind.TOPIC, 12)])
    rows = tombstones(store)
    assert rows[tombstone_key(RAFT_GROUP, DropKind.TOPIC, 4)] == encode_tombstone(1_000, 4, 7)
    assert rows[tombstone_key(RAFT_GROUP, DropKind.TOPIC, 12)] == (1_001).to_bytes(8, "big")
    again = DroppedIds(rows_of(store).tombstones)
    assert known(again) == known(ids)
    assert len(again) == len(ids) == 3
