"""Slots, FIFO queues, rendezvous hashing, hashes and message ids."""

from __future__ import annotations

from collections import Counter

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.layout.hashing import pack_message_id, text_hash, unpack_message_id
from strata_mq.layout.id_times import BLOCK_MESSAGES
from strata_mq.slots import (
    SLOT_COUNT,
    fifo_queue,
    preferred_group,
    rendezvous,
    slot_base,
    slot_of,
    slot_runs,
    striped_slots,
)

OFFICIAL_ID = "0190DB80539A6F48DE88837ED15B1664A0"


def test_stored_hashes_never_change() -> None:
    """These numbers are on disk: slots, hashes and queues of today are those of tomorrow."""
    assert text_hash("order-1") == 0x2599000E8C1B023D
    assert slot_base("", "orders", crc32c) == 1968
    assert slot_base("tenant", "orders", crc32c) == 719
    assert [fifo_queue(f"order-{number}", 8) for number in range(6)] == [1, 5, 3, 0, 2, 6]
    assert [rendezvous(bytes((key,)), [1, 2, 3]) for key in range(8)] == [1, 3, 2, 1, 2, 1, 3, 3]


def test_namespace_and_topic_do_not_run_together() -> None:
    """("a", "bc") and ("ab", "c") are different topics with different slots."""
    assert slot_base("a", "bc", crc32c) != slot_base("ab", "c", crc32c)


def test_queues_of_a_topic_are_spread_over_raft_groups() -> None:
    """Neighbouring queues have neighbouring slots, and slots are striped."""
    slots = striped_slots([1, 2, 3])
    assert len(slots) == SLOT_COUNT
    owners = Counter(slots[slot_of(4090, queue)] for queue in range(12))
    assert set(owners) == {1, 2, 3}
    assert max(owners.values()) - min(owners.values()) <= 1


def test_runs_describe_the_map() -> None:
    """One raft group is one run; runs put together give the map again."""
    assert slot_runs(striped_slots([5])) == [(0, SLOT_COUNT, 5)]
    slots = [1] * 3 + [2] + [1] * 2
    assert slot_runs(slots) == [(0, 3, 1), (3, 1, 2), (4, 2, 1)]
    rebuilt = [raft_group for _, count, raft_group in slot_runs(slots) for _ in range(count)]
    assert rebuilt == slots


@given(st.binary(max_size=20), st.sets(st.integers(0, 2**32 - 1), min_size=2, max_size=6))
def test_rendezvous_moves_only_what_it_must(key: bytes, candidates: set[int]) -> None:
    """Order does not matter, and losing another candidate changes nothing."""
    winner = rendezvous(key, sorted(candidates))
    assert winner == rendezvous(key, sorted(candidates, reverse=True))
    others = candidates - {winner}
    assert rendezvous(key, sorted(candidates - {min(others)})) == winner


def test_rendezvous_spreads_keys() -> None:
    """Over 3,000 ids each of three raft groups gets between 28 % and 39 %."""
    counts = Counter(rendezvous(f"id-{key}".encode(), [1, 2, 3]) for key in range(3_000))
    assert all(840 <= count <= 1_170 for count in counts.values())


def official_id(client: int, second: int, number: int) -> bytes:
    """Return the id of a message as the official clients make it."""
    return pack_message_id(f"01{client:016X}{second:08X}{number:08X}")


def test_successive_messages_of_a_client_prefer_one_raft_group() -> None:
    """128 of a second; the next ones, another second's, another client's may prefer another."""
    for first in (0, 128, 0xFFFFFF80):
        block = {
            preferred_group(official_id(7, 9, first + number), (1, 2, 3))
            for number in range(BLOCK_MESSAGES)
        }
        assert len(block) == 1, first
    by_block = [preferred_group(official_id(7, 9, block * 128), (1, 2, 3)) for block in range(99)]
    by_second = [preferred_group(official_id(7, second, 0), (1, 2, 3)) for second in range(99)]
    by_client = [preferred_group(official_id(client, 9, 0), (1, 2, 3)) for client in range(99)]
    for chosen in (by_block, by_second, by_client):
        assert all(20 <= count <= 46 for count in Counter(chosen).values()), chosen


def test_golden_preferences() -> None:
    """They never change: a repeat goes where the first attempt of another broker went."""
    ids = [official_id(7, second, 0) for second in range(8)]
    assert [preferred_group(each, (1, 2, 3)) for each in ids] == [3, 3, 2, 2, 1, 2, 3, 2]


def test_messages_with_other_ids_are_spread_one_by_one() -> None:
    """Their ids do not say which messages follow each other."""
    texts = [f"order-{number}" for number in range(999)]
    counts = Counter(preferred_group(pack_message_id(text), (1, 2, 3)) for text in texts)
    assert all(270 <= count <= 400 for count in counts.values())


def test_a_lost_raft_group_moves_only_its_blocks() -> None:
    """As rendezvous does."""
    for number in range(0, 6_400, BLOCK_MESSAGES):
        message_id = official_id(7, 9, number)
        with_all = preferred_group(message_id, (1, 2, 3))
        assert with_all == 3 or preferred_group(message_id, (1, 2)) == with_all


def test_no_candidate_is_an_error() -> None:
    """There is no default raft group."""
    with pytest.raises(ValueError, match="at least one candidate"):
        preferred_group(official_id(7, 9, 0), ())
    with pytest.raises(ValueError, match="at least one candidate"):
        rendezvous(b"key", [])
    with pytest.raises(ValueError, match="at least one raft group"):
        striped_slots([])


def test_an_official_id_comes_back() -> None:
    """34 upper-case hex digits are their own 17 bytes."""
    packed = pack_message_id(OFFICIAL_ID)
    assert packed == bytes.fromhex(OFFICIAL_ID)
    assert unpack_message_id(packed) == OFFICIAL_ID


@given(st.one_of(st.text(max_size=40), st.text("0123456789ABCDEFabcdef ", max_size=36)))
def test_any_id_has_17_bytes_and_no_other_text_comes_back(text: str) -> None:
    """Foreign ids are hashed: they keep apart from official ones and do not come back."""
    packed = pack_message_id(text)
    assert len(packed) == 17
    assert unpack_message_id(packed) in (text, None)


def test_ids_that_only_look_official_stay_different() -> None:
    """Lower case, blanks and a leading 00 are texts of their own."""
    lookalikes = [
        OFFICIAL_ID,
        OFFICIAL_ID.lower(),
        "00" + OFFICIAL_ID[2:],
        OFFICIAL_ID[:-2] + "  ",
        OFFICIAL_ID[:-1] + "G",
    ]
    assert len({pack_message_id(text) for text in lookalikes}) == len(lookalikes)
    assert all(pack_message_id(text)[0] == 0 for text in lookalikes[1:])


@given(st.text())
def test_no_text_hashes_to_zero(text: str) -> None:
    """0 means "none" in every column."""
    assert 0 < text_hash(text) < 2**64
