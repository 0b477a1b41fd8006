"""Messages that a raft group stored and handed out between two looks."""

from __future__ import annotations

from strata_storage.rows.traffic import Amount, Traffic


def test_amounts_add_up_by_queue_until_they_are_taken() -> None:
    """Parts of one queue are one sum, a second look sees only what came after the first."""
    traffic = Traffic()
    traffic.stored(1, 0, 3, 300)
    traffic.stored(1, 0, 1, 50)
    traffic.stored(1, 2, 1, 10)
    traffic.delivered(9, 1, [(0, 100), (0, 100), (2, 10)])
    traffic.delivered(9, 1, [])
    traffic.delivered(8, 1, [(0, 100)])
    stored, delivered = traffic.take()
    assert stored == {(1, 0): Amount(4, 350), (1, 2): Amount(1, 10)}
    assert delivered == {
        (9, 1, 0): Amount(2, 200),
        (9, 1, 2): Amount(1, 10),
        (8, 1, 0): Amount(1, 100),
    }
    assert traffic.take() == ({}, {})
