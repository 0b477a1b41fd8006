"""Extra infos of popped messages, as RocketMQ's clients read them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from strata_remoting import (
    PopInfo,
    PoppedPlace,
    RemotingError,
    encode_pop_info,
    handle_of_pop,
    message_offsets_text,
    read_batch_ack,
    start_offsets_text,
)

INFO = PopInfo(PoppedPlace("strata-r07", 3, 41), 1_700_000_000_000, 60_000, "AbC-_9")


def test_the_words_are_where_clients_look_for_them() -> None:
    """Eight words of RocketMQ (its ExtraInfoUtil reads them by number), and the handle."""
    text = encode_pop_info(INFO)
    assert text == "41 1700000000000 60000 0 0 strata-r07 3 41 AbC-_9"
    assert handle_of_pop(text) == "AbC-_9"


def test_a_mark_is_in_the_place_of_a_revive_queue() -> None:
    """Clients return that number in a batch ack."""
    assert encode_pop_info(INFO._replace(mark=77)).split(" ")[3] == "77"


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


SHORT = {
    "b": "CQ==", "c": "g", "it": 60_000, "pt": 1_700_000_000_000, "q": 3, "r": "0", "rq": 77,
    "so": 41, "t": "orders",
}  # fmt: skip
LONG = {
    "bitSet": [9], "consumerGroup": "g", "invisibleTime": 60_000, "popTime": 1_700_000_000_000,
    "queueId": 3, "retry": "0", "reviveQueueId": 77, "startOffset": 41, "topic": "orders",
}  # fmt: skip


@pytest.mark.parametrize("data", [SHORT, LONG], ids=["short", "long"])
def test_a_batch_ack_has_short_names_or_long_ones(data: dict[str, object]) -> None:
    """Bits count from the first offset; Java writes their bytes as base64."""
    ack = read_batch_ack(data)
    assert (ack.group, ack.topic, ack.queue_id, ack.mark) == ("g", "orders", 3, 77)
    assert (ack.popped_ms, ack.invisible_ms) == (1_700_000_000_000, 60_000)
    assert not ack.is_retry
    assert (ack.message_count, list(ack.offsets())) == (2, [41, 44])


def test_the_bytes_of_bits_may_have_a_sign() -> None:
    """As bytes of Java have."""
    ack = read_batch_ack(SHORT | {"b": [0, -128]})
    assert list(ack.offsets()) == [41 + 15]


@pytest.mark.parametrize(
    "wrong",
    [
        {"b": "no base64"},
        {"b": None},
        {"b": [1_000]},
        {"b": ["x"]},
        {"b": "A" * 400_000},
        {"c": ""},
        {"t": 5},
        {"q": -1},
        {"q": True},
        {"so": 1 << 63},
        {"pt": "1"},
    ],
)
def test_a_batch_ack_that_cannot_be_read_is_refused(wrong: dict[str, object]) -> None:
    """With the name of the field."""
    with pytest.raises(RemotingError, match=f"^{next(iter(wrong))} "):
        read_batch_ack(SHORT | wrong)


def test_bits_without_a_message_take_no_steps() -> None:
    """A body of a megabyte has eight million of them, and holds up every other client."""
    bits = bytearray(1 << 16)
    bits[0], bits[-1] = 0b10, 0b1000_0001
    ack = read_batch_ack(SHORT | {"b": list(bits)})
    steps = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        offsets = list(ack.offsets())
    finally:
        sys.settrace(before)
    last = ack.first_offset + 8 * (len(bits) - 1)
    assert offsets == [ack.first_offset + 1, last, last + 7]
    assert steps < 1_000
