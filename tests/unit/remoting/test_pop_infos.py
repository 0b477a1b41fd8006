"""Extra infos of popped messages, as RocketMQ's clients read them."""

from __future__ import annotations

import pytest

from strata_remoting import (
    PopInfo,
    PoppedPlace,
    encode_pop_info,
    handle_of_pop,
    message_offsets_text,
    start_offsets_text,
)

INFO = PopInfo(PoppedPlace("strata-r07", 3, 41), 1_700_000_000_000, 60_000, "AbC-_9")


def test_the_words_are_where_clients_look_for_them() -> None:
    """Eight words of RocketMQ (its ExtraInfoUtil reads them by number), and the handle."""
    text = encode_pop_info(INFO)
    assert text == "41 1700000000000 60000 0 0 strata-r07 3 41 AbC-_9"
    assert handle_of_pop(text) == "AbC-_9"


@pytest.mark.parametrize("text", ["", " ", "a b", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8 9 10"])
def test_another_text_has_no_handle(text: str) -> None:
    """Such as one that a client made by itself."""
    assert handle_of_pop(text) == ""


def test_a_long_text_has_no_handle() -> None:
    """It is not even split."""
    assert handle_of_pop("1 2 3 4 5 6 7 8 " + "x" * 5_000) == ""


def test_offsets_are_listed_by_queue() -> None:
    """The kind of topic, the queue id, and the offsets."""
    assert start_offsets_text({0: 5, 3: 9}) == "0 0 5;0 3 9"
    assert message_offsets_text({0: [5, 7], 3: [9]}) == "0 0 5,7;0 3 9"
