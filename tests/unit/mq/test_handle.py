"""Receipt handles: round trips, damage, forgeries by accident."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.handle import (
    ReceiptHandle,
    decode_handle,
    decode_handles,
    encode_handle,
    encode_handles,
)
from strata_mq.requests.handle_keys import HandleKeys

words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)
handles = st.builds(
    ReceiptHandle, words, words, words, words, longs, words, words, longs, st.booleans()
)

KEYS = HandleKeys({7: b"k" * 32, 8: b"n" * 32}, 8, accept_unsigned=False)
FORMER = HandleKeys({7: b"k" * 32}, 7, accept_unsigned=False)
EXAMPLE = ReceiptHandle(1, 2, 3, 4, 123_456_789, 1, 0, 1_795_257_955_000)


def test_golden_texts(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """Handles outlive a rolling upgrade, so their text never changes unnoticed."""
    golden(
        "handle.txt",
        {
            "plain": encode_handle(EXAMPLE).encode(),
            "auto-renewed": encode_handle(
                EXAMPLE._replace(visible_at_ms=0, auto_renewed=True)
            ).encode(),
            "signed": encode_handle(EXAMPLE, KEYS).encode(),
            "signed, auto-renewed": encode_handle(
                EXAMPLE._replace(visible_at_ms=0, auto_renewed=True), KEYS
            ).encode(),
        },
    )


@given(handles)
def test_round_trip(handle: ReceiptHandle) -> None:
    """A handle is 60 url-safe characters and says everything again."""
    text = encode_handle(handle)
    assert len(text) == 60
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert decode_handle(text) == handle
    signed = encode_handle(handle, KEYS)
    assert len(signed) == 68
    assert decode_handle(signed, KEYS) == handle


@given(handles, st.integers(0, 59), st.sampled_from("AZaz09-_"))
def test_any_changed_character_is_found(handle: ReceiptHandle, at: int, other: str) -> None:
    """One wrong character never gives another handle."""
    text = encode_handle(handle)
    damaged = text[:at] + other + text[at + 1 :]
    if damaged != text:
        with pytest.raises(RequestError):
            decode_handle(damaged)


@given(st.one_of(st.text(max_size=80), st.text(min_size=60, max_size=60)))
def test_other_texts_are_invalid_handles(text: str) -> None:
    """Nonsense is INVALID_RECEIPT_HANDLE, with the code's name as text."""
    with pytest.raises(RequestError) as caught:
        decode_handle(text)
    assert caught.value.code is Code.INVALID_RECEIPT_HANDLE
    assert caught.value.text == "INVALID_RECEIPT_HANDLE"


def test_handles_of_the_real_product_are_invalid() -> None:
    """A tuple of numbers, as RocketMQ's own brokers give, is refused and not misread."""
    with pytest.raises(RequestError):
        decode_handle("0 1795257925749 30000 5 0 broker-a 0 0 42377934")


@given(handles, st.integers(0, 67), st.sampled_from("AZaz09-_"))
def test_any_changed_character_of_a_signed_handle_is_found(
    handle: ReceiptHandle, at: int, other: str
) -> None:
    """No part can be changed: what is signed, the key's id, the tag."""
    text = encode_handle(handle, KEYS)
    forged = text[:at] + other + text[at + 1 :]
    if forged != text:
        with pytest.raises(RequestError) as caught:
            decode_handle(forged, KEYS)
        assert caught.value.code is Code.INVALID_RECEIPT_HANDLE


@given(
    st.lists(st.tuples(handles, st.sampled_from([KEYS, FORMER, HandleKeys({})])), max_size=6),
    st.lists(st.tuples(st.integers(0, 6), st.text(max_size=80)), max_size=2),
)
def test_many_handles_are_read_as_each_one_is(
    made: list[tuple[ReceiptHandle, HandleKeys]], others: list[tuple[int, str]]
) -> None:
    """They are of several keys, with unsigned ones and nonsense among them."""
    texts = [encode_handle(handle, keys) for handle, keys in made]
    for at, text in others:
        texts.insert(at, text)
    expected: list[ReceiptHandle | None] = []
    for text in texts:
        try:
            expected.append(decode_handle(text, KEYS))
        except RequestError:
            expected.append(None)
    assert decode_handles(texts, KEYS) == expected


@given(st.lists(handles, min_size=1, max_size=5), st.integers(0, 67), st.sampled_from("AZ09-_=é"))
def test_one_changed_character_among_many_handles_is_found(
    made: list[ReceiptHandle], at: int, other: str
) -> None:
    """The others stay good; many handles are written as each one is."""
    texts = encode_handles(made, KEYS)
    assert texts == [encode_handle(handle, KEYS) for handle in made]
    assert encode_handles(made) == [encode_handle(handle) for handle in made]
    assert decode_handles(texts, KEYS) == made
    changed = texts[0][:at] + other + texts[0][at + 1 :]
    if changed != texts[0]:
        assert decode_handles([changed, *texts[1:]], KEYS) == [None, *made[1:]]


def test_a_key_signs_until_it_is_not_valid_any_more() -> None:
    """A rotation leaves the handles of the key before good; the next one does not."""
    former = encode_handle(EXAMPLE, FORMER)
    assert decode_handle(former, KEYS) == EXAMPLE
    later = HandleKeys({8: b"n" * 32, 9: b"m" * 32}, 9, accept_unsigned=False)
    with pytest.raises(RequestError):
        decode_handle(former, later)
    assert decode_handle(encode_handle(EXAMPLE, KEYS), later) == EXAMPLE


def test_a_key_of_the_same_id_and_another_secret_is_no_key() -> None:
    """Another cluster counts its keys from 1, too."""
    theirs = HandleKeys({8: b"other" * 4}, 8)
    with pytest.raises(RequestError):
        decode_handle(encode_handle(EXAMPLE, theirs), KEYS)


def test_unsigned_handles_are_good_only_where_they_are_accepted() -> None:
    """They are of an older version, or of somebody who can count."""
    unsigned = encode_handle(EXAMPLE)
    with pytest.raises(RequestError):
        decode_handle(unsigned, KEYS)
    accepting = HandleKeys({8: b"n" * 32}, 8)
    assert decode_handle(unsigned, accepting) == EXAMPLE


def test_without_keys_a_signed_handle_is_invalid() -> None:
    """Nobody can say whose it is."""
    with pytest.raises(RequestError):
        decode_handle(encode_handle(EXAMPLE, KEYS))
