"""Apply of tables: replicas agree, crashes lose nothing, what is dropped stays away."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from strata_kv.commands import decode_kv_write, encode_kv_write
from strata_kv.machine import KvApplyError
from strata_kv.model import Engine
from strata_kv.options import TableOptions
from strata_kv.rows import ReplyRow
from strata_mq.commands.common import CommandError
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError
from tests.unit.kv.tables import NOW_MS, TABLE, Group, apply, delete, put


@pytest.fixture(params=list(Engine))
def group(request: pytest.FixtureRequest) -> Group:
    return Group(engine=request.param)


def test_a_command_is_decoded_to_what_was_encoded(group: Group) -> None:
    """Every field survives; a cut or longer payload is an error."""
    group.decide([put(b"a", b"1", 50), put(b"b", b"")], [delete(b"a")], broker=(7, 8))
    [payload] = group.log
    command = decode_kv_write(payload)
    assert (command.group_time_ms, command.broker_boot_id, command.sequence) == (NOW_MS, 7, 8)
    assert encode_kv_write(command) == payload
    for broken in (payload[:-1], payload + b"x", payload[:20], b"\x14\x02" + payload[2:]):
        with pytest.raises(CommandError):
            decode_kv_write(broken)


def test_a_new_table_is_told_once(group: Group) -> None:
    """It gets the row by which it keeps its place; later writes do not."""
    group.write([put(b"a", b"1")])
    group.write([put(b"b", b"1")])
    assert group.placed == [TABLE]


def test_an_entry_that_goes_back_stops_apply(group: Group) -> None:
    """The same entry twice would give revisions twice."""
    group.write([put(b"a", b"1")])
    with pytest.raises(KvApplyError):
        apply(group.machine, group.store, 2, group.log[0])


def test_the_last_answer_of_a_broker_is_kept_and_goes_with_age(group: Group) -> None:
    """A repeat finds its answer; a broker that wrote nothing for long is forgotten."""
    group.decide([put(b"a", b"1")], broker=(7, 1))
    group.decide([put(b"a", b"2")], broker=(7, 2), now_ms=NOW_MS + 5)
    group.apply()
    assert group.machine.reply(7) == ReplyRow(2, NOW_MS + 5, b"reply")
    for oldest_ms, kept in ((NOW_MS + 5, True), (NOW_MS + 6, False)):
        batch = group.store.new_batch()
        group.machine.trim(batch, oldest_ms)
        group.store.write(batch)
        assert (group.machine.reply(7) is not None) is kept


def test_a_dropped_table_is_gone_and_later_entries_do_nothing(group: Group) -> None:
    """Items, history and row go at once, rows of ends when their time comes."""
    group.write([put(b"a", b"1", 100), put(b"b", b"2")])
    group.decide([put(b"c", b"3")])
    batch = group.store.new_batch()
    group.machine.drop_table(batch, TABLE)
    group.store.write(batch)
    group.machine.written()
    group.dropped.add(TABLE)
    group.apply()
    assert (group.machine.table(TABLE), group.values(), group.changes()) == (None, {}, [])
    due = group.machine.expiries(0, 1 << 62, 10)
    assert [one.key for one in due] == [b"a"]
    group.propose(group.decider.expire(due))
    group.apply()
    assert group.machine.expiries(0, 1 << 62, 10) == []


def test_listeners_hear_of_tables_after_their_rows_are_there(group: Group) -> None:
    """A listener that is woken reads the change that woke it."""
    heard: list[tuple[set[int], dict[bytes, bytes]]] = []
    group.machine.listener = lambda tables: heard.append((tables, group.values()))
    group.write([put(b"a", b"1")])
    assert heard == [({TABLE}, {b"a": b"1"})]


def test_a_crash_at_any_moment_loses_nothing_that_the_log_has() -> None:
    """The store has some prefix; redo of what was not settled, then apply, give the same items."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(30):
        options = TableOptions(memory_unsettled_max_bytes=chance.choice((100, 1_000_000)))
        group = Group(options, chance.choice(list(Engine)))
        for _ in range(chance.randrange(1, 60)):
            key = b"%d" % chance.randrange(8)
            group.write(
                [put(key, b"%d" % chance.randrange(100))]
                if chance.random() < 0.8
                else [delete(key)]
            )
            if chance.random() < 0.1:
                group.machine.settle(group.applied)
            if chance.random() < 0.2:
                group.store.flush()
        if group.applied == 0:
            continue
        if chance.random() < 0.3:
            group.store.flush()
        store = group.store.after_crash()
        assert recovered(group, store) == group.values()


def test_items_in_memory_are_settled_when_much_changed() -> None:
    """No write of them grows without bound: the store gets them before anybody asks for it."""
    group = Group(TableOptions(memory_unsettled_max_bytes=1_000), Engine.MEMORY)
    group.write([put(b"a", b"v" * 900)])
    assert group.machine.settled_index() == 0
    group.write([put(b"b", b"v" * 100)])
    assert group.machine.settled_index() == 2
    group.write([put(b"c", b"v" * 900)])
    assert group.machine.settled_index() == 2
    assert [key for key, _ in group.open(group.store).scan(TABLE, b"", b"")] == [b"a", b"b"]
    assert set(group.values()) == {b"a", b"b", b"c"}


def recovered(group: Group, store: MemoryStore) -> dict[bytes, bytes]:
    """Open a store as a node does after a crash; return the items."""
    machine = group.open(store)
    # As the applied row says, which is in the same batch as the others.
    applied = applied_index(group, store)
    settled = machine.settled_index()
    for index in range((applied if settled is None else settled) + 1, applied + 1):
        machine.redo(group.log[index - 1])
    for index in range(applied + 1, len(group.log) + 1):
        apply(machine, store, index, group.log[index - 1])
    return {key: item.value for key, item in machine.scan(TABLE, b"", b"")}


def applied_index(group: Group, store: MemoryStore) -> int:
    """Return the last entry whose rows are in a store."""
    table = group.open(store).table(TABLE)
    revision = 0 if table is None else table.revision
    for index, payload in enumerate(group.log, 1):
        if decode_kv_write(payload).sections[-1].table.revision == revision:
            return index
    return 0


def test_a_part_of_a_table_is_never_taken_for_the_whole() -> None:
    """A read that fails in the middle is repeated: locks that are held would be free else."""
    group = Group(engine=Engine.MEMORY)
    group.write([put(b"a", b"1"), put(b"lock", b"mine")])
    group.machine.settle(group.applied)
    machine = group.open(group.store)
    scan = group.store.scan

    def interrupted(begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield next(scan(begin, end))
        raise StateError("the disk failed")

    with patch.object(group.store, "scan", interrupted), pytest.raises(StateError):
        machine.item(TABLE, b"lock")
    item = machine.item(TABLE, b"lock")
    assert item is not None
    assert item.value == b"mine"


def test_the_end_of_a_table_is_heard_though_nothing_was_written_to_it(group: Group) -> None:
    """Somebody may follow it."""
    heard: list[set[int]] = []
    group.machine.listener = heard.append
    batch = group.store.new_batch()
    group.machine.drop_table(batch, TABLE)
    group.store.write(batch)
    group.machine.written()
    assert heard == [{TABLE}]
