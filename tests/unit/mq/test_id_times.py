"""Time at which an id was made, as the id tells it."""

from __future__ import annotations

import pytest

from strata_mq.layout.hashing import pack_message_id
from strata_mq.layout.id_times import all_made_between, block_of, made_ms

# An id of the Java client: 0x024CCDBE seconds after 2021-01-01 00:00:00 UTC.
OFFICIAL = pack_message_id("0156F7E71C361B21BC024CCDBE00000000")
MADE_MS = (1_609_459_200 + 0x024CCDBE) * 1_000


def test_an_official_id_says_when_it_was_made() -> None:
    """To the second, with both ends."""
    assert made_ms(OFFICIAL) == MADE_MS
    assert all_made_between([OFFICIAL], MADE_MS, MADE_MS)
    assert all_made_between([OFFICIAL], MADE_MS - 5_000, MADE_MS + 5_000)
    assert not all_made_between([OFFICIAL], MADE_MS + 1_000, MADE_MS + 5_000)
    assert not all_made_between([OFFICIAL], MADE_MS - 5_000, MADE_MS - 1_000)


def test_one_that_was_made_at_another_time_is_enough() -> None:
    """The oldest and the newest of many ids count."""
    older = OFFICIAL[:9] + (0x024CCDBE - 9).to_bytes(4, "big") + OFFICIAL[13:]
    assert all_made_between([OFFICIAL, older], MADE_MS - 9_000, MADE_MS)
    assert not all_made_between([OFFICIAL, older], MADE_MS - 8_000, MADE_MS)


@pytest.mark.parametrize("text", ["order-17", "02" + "00" * 16])
def test_other_ids_say_nothing(text: str) -> None:
    """Neither a hash nor an id of another version has a time in it."""
    assert not all_made_between([pack_message_id(text)], 0, 1 << 60)
    assert not all_made_between([OFFICIAL, pack_message_id(text)], 0, 1 << 60)
    assert made_ms(pack_message_id(text)) is None
    assert block_of(pack_message_id(text)) is None


def test_a_block_is_128_messages_of_a_client_and_second() -> None:
    """It is named by its first message."""
    assert block_of(OFFICIAL) == block_of(OFFICIAL[:-1] + b"\x7f") == OFFICIAL
    assert block_of(OFFICIAL[:-1] + b"\xff") == OFFICIAL[:-1] + b"\x80"
    for at in range(1, 16):
        other = bytearray(OFFICIAL)
        other[at] ^= 1
        assert block_of(bytes(other)) == bytes(other), at


def test_times_beyond_what_an_id_can_say_exclude_nothing_by_mistake() -> None:
    """Before 2021, and after 2157."""
    assert not all_made_between([OFFICIAL], 0, 1_600_000_000_000)
    assert all_made_between([OFFICIAL], 0, 1 << 60)
    assert not all_made_between([OFFICIAL], 1 << 60, 1 << 61)
