"""The window of the earliest pending messages: complete below its bound, bounded (rule 27)."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from strata_mq.layout.pending_rows import PendingKey
from strata_storage.leading.pending.due_window import DueWindow

FIRST = PendingKey(0, 0, 0)


class Rows:
    """Pending rows as the store has them: sorted keys."""

    def __init__(self) -> None:
        self.keys: list[PendingKey] = []

    def put(self, key: PendingKey) -> None:
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            self.keys.insert(at, key)

    def read(self, begin: PendingKey, limit: int) -> list[PendingKey]:
        at = bisect_left(self.keys, begin)
        return self.keys[at : at + limit]


def fill(window: DueWindow, rows: Rows) -> None:
    while window.wants_rows:
        window.read(rows.read(*window.begin_reading()))


def test_rows_are_read_from_the_bound_on_and_never_again() -> None:
    """Taken rows lie behind the bound: a scan does not meet their tombstones (rule 27)."""
    window, rows = DueWindow(FIRST, 4), Rows()
    for due_ms in range(10):
        rows.put(PendingKey(due_ms, 1, 0))
    begins = []
    taken = []
    for now_ms in range(10):
        while window.wants_rows:
            begin, limit = window.begin_reading()
            begins.append(begin.due_ms)
            window.read(rows.read(begin, limit))
        taken += window.take(now_ms, 100)
    assert [key.due_ms for key in taken] == list(range(10))
    assert begins == sorted(begins)
    assert len(begins) <= 5


def test_keys_beyond_the_bound_are_left_to_the_rows() -> None:
    """A message due late fills no memory; one due early is in the window at once."""
    window, rows = DueWindow(FIRST, 4), Rows()
    for due_ms in range(100, 200):
        rows.put(PendingKey(due_ms, 1, 0))
    window.read(rows.read(*window.begin_reading()))
    window.add(PendingKey(500, 2, 0))
    assert len(window) == 4
    window.add(PendingKey(50, 2, 0))
    assert window.next_due_ms() == 50
    assert len(window) == 5


def test_what_becomes_pending_while_rows_are_read_is_not_missed() -> None:
    """The picture that is read is older than the key; its place is between what was read."""
    window, rows = DueWindow(FIRST, 4), Rows()
    for due_ms in (10, 20, 30, 40, 50):
        rows.put(PendingKey(due_ms, 1, 0))
    picture = rows.read(*window.begin_reading())
    window.add(PendingKey(15, 2, 0))
    window.add(PendingKey(45, 2, 0))
    window.read(picture)
    assert [key.due_ms for key in window.take(100, 100)] == [10, 15, 20, 30, 40]


def test_a_reading_that_failed_changes_nothing() -> None:
    """The next one begins at the same bound."""
    window = DueWindow(FIRST, 4)
    before = window.begin_reading()
    window.not_read()
    assert window.begin_reading() == before


def test_more_than_twice_the_limit_is_never_kept() -> None:
    """The latest keys go; their rows are read again when their time comes near."""
    window, rows = DueWindow(FIRST, 8), Rows()
    window.read([])
    for due_ms in range(100, 0, -1):
        key = PendingKey(due_ms, 1, 0)
        rows.put(key)
        window.add(key)
        assert len(window) <= 16
    fill(window, rows)
    taken: list[int] = []
    while batch := window.take(1_000, 5):
        taken += [key.due_ms for key in batch]
        fill(window, rows)
    assert taken == list(range(1, 101))


def test_what_is_due_is_counted_and_stays() -> None:
    """Exactly the keys up to now, whatever the order in which they came."""
    window = DueWindow(FIRST, 64)
    window.bound = None
    for index, due_ms in enumerate((500, 100, 300, 100, 200)):
        window.add(PendingKey(due_ms, index, 0))
    assert [window.due(now_ms) for now_ms in (99, 100, 250, 1_000)] == [0, 2, 3, 5]
    assert len(window) == 5


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_taken_in_order_of_due_times(seed: int) -> None:
    """Random messages, readings and times: each is taken once it is due, none is left behind."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    window, rows = DueWindow(FIRST, chance.choice([4, 8, 16])), Rows()
    expected: set[PendingKey] = set()
    taken: list[PendingKey] = []
    now_ms = 0
    for index in range(600):
        key = PendingKey(now_ms + chance.randint(0, 400), index, 0)
        rows.put(key)
        window.add(key)
        expected.add(key)
        if chance.random() < 0.3:
            fill(window, rows)
        if chance.random() < 0.2:
            now_ms += chance.randint(0, 60)
            fill(window, rows)
            got = window.take(now_ms, 1_000)
            while window.wants_rows:
                fill(window, rows)
                got += window.take(now_ms, 1_000)
            assert got == sorted(got)
            assert {key for key in expected if key.due_ms <= now_ms} <= {*taken, *got}
            assert all(key.due_ms <= now_ms for key in got)
            taken += got
            # Delivered: their rows are gone.
            rows.keys = [key for key in rows.keys if key.due_ms > now_ms]
    assert len(taken) == len(set(taken))
