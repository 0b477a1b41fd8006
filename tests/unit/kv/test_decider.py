"""Decisions of a leader about tables: conditions, versions, revisions, and writes in flight."""

from __future__ import annotations

import random

import pytest

from strata.storage.v1 import storage_pb2
from strata_kv.commands import KvWrite, encode_kv_write
from strata_kv.decider import BatchDecision, Decider, WriteRefused
from strata_kv.model import ChangeKind, Engine
from strata_kv.options import TableOptions
from tests.unit.kv.tables import NOW_MS, TABLE, Group, apply, check, delete, put, request_of


@pytest.fixture(params=list(Engine))
def group(request: pytest.FixtureRequest) -> Group:
    return Group(engine=request.param)


def test_versions_count_writes_of_a_key_and_revisions_writes_of_the_table(group: Group) -> None:
    """A new key has version 1 again; each request that changes something is one revision."""
    group.write([put(b"a", b"1")])
    [second] = group.write([put(b"a", b"2"), put(b"b", b"1")]).results
    assert (second.applied, second.revision, list(second.versions)) == (True, 2, [2, 1])
    group.write([delete(b"a")])
    [again] = group.write([put(b"a", b"3")]).results
    assert (again.revision, list(again.versions)) == (4, [1])
    item = group.machine.item(TABLE, b"a")
    assert item is not None
    assert (item.create_revision, item.modify_revision, item.value) == (4, 4, b"3")


@pytest.mark.parametrize(
    ("operation", "holds"),
    [
        (put(b"a", b"x", version=1), True),
        (put(b"a", b"x", version=2), False),
        (put(b"a", b"x", version=0), False),
        (put(b"new", b"x", version=0), True),
        (put(b"new", b"x", version=1), False),
        (put(b"a", b"x", value_is=b"1"), True),
        (put(b"a", b"x", value_is=b"2"), False),
        (put(b"new", b"x", value_is=b""), False),
        (delete(b"a", version=1), True),
        (delete(b"a", version=3), False),
        (check(b"a", version=1), True),
        (check(b"a", version=9), False),
    ],
)
def test_a_condition_is_of_version_or_value(group: Group, operation: object, holds: bool) -> None:
    """Version 0 means that the key is not there; a value means that it is there with it."""
    group.write([put(b"a", b"1")])
    [result] = group.write([operation]).results  # type: ignore[list-item]
    assert result.applied is holds


def test_a_batch_happens_as_a_whole_or_not_at_all(group: Group) -> None:
    """One condition that fails keeps every operation back, and is named with what is there."""
    group.write([put(b"a", b"1")])
    decision = group.write([put(b"b", b"2"), delete(b"a"), put(b"c", b"3", version=7)])
    [result] = decision.results
    assert (result.applied, result.failed_operation, decision.sections) == (False, 2, [])
    assert group.values() == {b"a": b"1"}
    [refused] = group.write([put(b"b", b"2"), put(b"a", b"x", version=7)]).results
    assert (refused.failed_operation, refused.current.value) == (1, b"1")


def test_a_request_sees_what_is_in_flight_before_it(group: Group) -> None:
    """One of two compare-and-sets with the same version, decided before apply, wins."""
    group.write([put(b"a", b"1")])
    first = group.decide([put(b"a", b"2", version=1)], [put(b"a", b"3", version=1)])
    second = group.decide([put(b"a", b"4", version=1)], [put(b"a", b"5", version=2)])
    group.apply()
    applied = [result.applied for decision in (first, second) for result in decision.results]
    assert applied == [True, False, False, True]
    assert group.values() == {b"a": b"5"}
    assert len(group.decider) == 0


def test_what_was_not_proposed_leaves_no_trace(group: Group) -> None:
    """A decision whose proposal was refused is forgotten with the decision."""
    group.write([put(b"a", b"1")])
    refused = BatchDecision()
    group.decider.write(refused, TABLE, request_of([put(b"a", b"2", version=1)]), NOW_MS)
    assert (refused.results[0].applied, len(refused.sections)) == (True, 1)
    [result] = group.write([put(b"a", b"3", version=1)]).results
    assert (result.applied, result.revision) == (True, 2)


def test_a_deletion_of_nothing_changes_nothing(group: Group) -> None:
    """No revision, no history, no entry; the answer says so."""
    group.write([put(b"a", b"1")])
    decision = group.write([delete(b"missing")])
    assert (decision.sections, decision.results[0].applied) == ([], True)
    assert (decision.results[0].changed, decision.results[0].revision) == (False, 1)


@pytest.mark.parametrize(
    "operations",
    [
        [put(b"", b"no key")],
        [put(b"k" * 4_097, b"long key")],
        [put(b"a", b"v" * 1_048_577)],
        [put(b"a", b"1"), delete(b"a")],
        [put(b"%d" % n, b"") for n in range(1_025)],
    ],
)
def test_a_wrong_request_is_refused_and_changes_nothing(
    group: Group, operations: list[object]
) -> None:
    """Limits and keys that stand twice are named as the caller's fault."""
    with pytest.raises(WriteRefused) as refused:
        group.decide(operations)  # type: ignore[arg-type]
    assert refused.value.outcome == storage_pb2.OUTCOME_INVALID
    assert group.log == []


def test_a_table_in_memory_has_a_limit_that_deletions_free() -> None:
    """A put beyond it is refused; a smaller value and a deletion always pass."""
    group = Group(TableOptions(memory_table_max_bytes=10), Engine.MEMORY)
    group.write([put(b"a", b"123456789")])
    with pytest.raises(WriteRefused) as refused:
        group.decide([put(b"b", b"")])
    assert refused.value.outcome == storage_pb2.OUTCOME_OVERLOADED
    group.write([put(b"a", b"1")])
    group.write([put(b"b", b"2345")])
    table = group.machine.table(TABLE)
    assert table is not None
    assert (table.key_count, table.byte_count) == (2, 7)


def test_items_end_when_their_time_is_over_and_not_before(group: Group) -> None:
    """Only what is due ends; a new time takes the place of the old one."""
    group.write([put(b"soon", b"1", 100), put(b"late", b"2", 200), put(b"never", b"3")])
    group.write([put(b"soon", b"again", 300)])
    assert group.machine.expiries(0, NOW_MS + 150, 10) == []
    due = group.machine.expiries(0, NOW_MS + 201, 10)
    assert [one.key for one in due] == [b"late"]
    group.propose(group.decider.expire(due))
    group.apply()
    assert group.values() == {b"soon": b"again", b"never": b"3"}
    assert group.changes(3) == [(3, ChangeKind.EXPIRE, b"late", b"")]
    assert [one.key for one in group.machine.expiries(0, 1 << 62, 10)] == [b"soon"]


def test_an_item_that_gets_more_time_in_flight_does_not_end(group: Group) -> None:
    """The row of the old time is still there when the leader looks; the item stays."""
    group.write([put(b"a", b"1", 100)])
    group.decide([put(b"a", b"2", 1_000)])
    due = group.machine.expiries(0, NOW_MS + 500, 10)
    assert [one.key for one in due] == [b"a"]
    group.propose(group.decider.expire(due))
    group.apply()
    assert group.values() == {b"a": b"2"}


def test_an_item_that_an_entry_in_flight_deletes_does_not_end_too(group: Group) -> None:
    """Watches are told once that it is gone."""
    group.write([put(b"a", b"1", ttl_ms=10)])
    due = group.machine.expiries(0, NOW_MS + 11, 10)
    group.decide([delete(b"a")])
    group.propose(group.decider.expire(due))
    group.apply()
    assert [kind for _, kind, _, _ in group.changes()] == [ChangeKind.PUT, ChangeKind.DELETE]
    assert group.machine.expiries(0, NOW_MS + 11, 10) == []


def test_the_history_is_bounded_by_changes_and_by_bytes(group: Group) -> None:
    """Between half of the limit and all of it is kept, the newest always."""
    for options in (
        TableOptions(history_max_changes=20),
        TableOptions(history_max_bytes=20 * 11, history_max_changes=10_000),
    ):
        group = Group(options, group.engine)
        for number in range(1, 101):
            group.write([put(b"k", b"%010d" % number)])
            revisions = [revision for revision, *_ in group.changes()]
            assert revisions[-1] == number
            assert min(number, 9) <= len(revisions) <= 20
            table = group.machine.table(TABLE)
            assert table is not None
            assert revisions[0] == table.compacted_revision + 1


def test_random_requests_agree_with_a_dictionary() -> None:
    """The outcome is that of one request after another, whatever is in flight at the decision."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for engine in Engine:
        group = Group(engine=engine)
        model: dict[bytes, tuple[bytes, int]] = {}
        for _ in range(400):
            requests = []
            expected = []
            for _ in range(chance.randrange(1, 4)):
                key, value = b"%d" % chance.randrange(5), b"%d" % chance.randrange(100)
                version = chance.choice((None, 0, 1, 2, 3))
                condition = {} if version is None else {"version": version}
                is_put = chance.random() < 0.7
                operation = put(key, value, **condition) if is_put else delete(key, **condition)
                requests.append([operation])
                there = model.get(key, (b"", 0))
                holds = version in (None, there[1])
                expected.append(holds)
                if holds and is_put:
                    model[key] = (value, there[1] + 1)
                elif holds:
                    model.pop(key, None)
            decision = group.decide(*requests)
            assert [result.applied for result in decision.results] == expected
            if chance.random() < 0.3:
                group.apply()
        group.apply()
        assert group.values() == {key: value for key, (value, _) in model.items()}


@pytest.mark.parametrize("field", ["ttl_ms", "expires_at_ms", "version"])
def test_a_number_that_no_row_holds_is_refused(group: Group, field: str) -> None:
    """Writes of others share its entry, and must not fail with it."""
    operation = put(b"a", b"1")
    setattr(operation, field, (1 << 64) - 1)
    with pytest.raises(WriteRefused) as refused:
        group.decide([operation])
    assert refused.value.outcome == storage_pb2.OUTCOME_INVALID
    setattr(operation, field, 1 << 62)
    group.write([operation])
    [again] = group.write([put(b"a", b"2")]).results
    assert again.applied


def test_an_engine_that_is_not_known_is_refused() -> None:
    """A newer broker may know more of them."""
    group, decision = Group(), BatchDecision()
    wanted = request_of([put(b"a", b"1")])
    wanted.engine = 77  # type: ignore[assignment]
    with pytest.raises(WriteRefused) as refused:
        group.decider.write(decision, TABLE, wanted, NOW_MS)
    assert refused.value.outcome == storage_pb2.OUTCOME_INVALID
    assert not decision.sections


def test_counts_of_a_table_never_fall_below_nothing(group: Group) -> None:
    """A repair of the log gave up a deletion: the item is there again, and was counted out."""
    group.write([put(b"a", b"1")])
    group.decide([delete(b"a")])
    lost = len(group.log)
    group.decide([put(b"b", b"2")])
    del group.log[lost - 1], group.in_flight[0]
    group.decider = Decider(group.machine, group.options)
    apply(group.machine, group.store, lost + 1, group.log[-1])
    assert group.values() == {b"a": b"1", b"b": b"2"}
    for key in (b"a", b"b"):
        decision = BatchDecision()
        operations = request_of([delete(key)], group.engine)
        group.decider.write(decision, TABLE, operations, NOW_MS)
        command = KvWrite(NOW_MS, 0, 0, b"", decision.sections)
        apply(group.machine, group.store, lost + 2, encode_kv_write(command))
    table = group.machine.table(TABLE)
    assert table is not None
    assert (table.key_count, table.byte_count, group.values()) == (0, 0, {})
