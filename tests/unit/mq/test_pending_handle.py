"""Transaction ids and recall handles: round trips, damage, other people's texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.requests.handle_keys import HandleKeys, HandleKind
from strata_mq.requests.pending_handle import (
    BadHandleError,
    HandleForm,
    PendingHandle,
    decode_pending_handle,
    encode_pending_handle,
)

words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)
placed = st.sampled_from((HandleForm.PENDING, HandleForm.STORED))
handles = st.one_of(
    st.tuples(words, words, st.text(min_size=1, max_size=80)).map(
        lambda fields: PendingHandle(*fields)
    ),
    st.builds(PendingHandle, words, words, st.text(max_size=80), placed, longs, words),
)

ID = "0102FC00000001476B0B12F80A00000000"
KEYS = HandleKeys({7: b"k" * 32, 8: b"n" * 32}, 8, accept_unsigned=False)
EXAMPLE = PendingHandle(1, 101, ID)


def test_golden_texts(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """Handles outlive a rolling upgrade, so their text never changes unnoticed."""
    golden(
        "pending_handle.txt",
        {
            "by message id": encode_pending_handle(EXAMPLE).encode(),
            "pending": encode_pending_handle(
                EXAMPLE._replace(form=HandleForm.PENDING, number=77, part=3)
            ).encode(),
            "stored": encode_pending_handle(
                EXAMPLE._replace(form=HandleForm.STORED, number=2**40, part=7)
            ).encode(),
            "signed": encode_pending_handle(EXAMPLE, KEYS).encode(),
            "signed, pending": encode_pending_handle(
                EXAMPLE._replace(form=HandleForm.PENDING, number=77, part=3), KEYS
            ).encode(),
        },
    )


@given(handles)
def test_round_trip(handle: PendingHandle) -> None:
    """A handle is url-safe and says everything again."""
    text = encode_pending_handle(handle)
    assert decode_pending_handle(text) == handle
    assert decode_pending_handle(encode_pending_handle(handle, KEYS), KEYS) == handle
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(handles, st.data())
def test_any_changed_character_is_noticed(handle: PendingHandle, data: st.DataObject) -> None:
    """No other text stands for a handle: not a changed, a cut, nor a longer one."""
    text = encode_pending_handle(handle)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda one: one != text[at]))
    for bad in (text[:at] + other + text[at + 1 :], text[:at], text + other, text + "="):
        with pytest.raises(BadHandleError):
            decode_pending_handle(bad)


@given(handles, st.data())
def test_a_signed_handle_cannot_be_changed(handle: PendingHandle, data: st.DataObject) -> None:
    """Not a character of it, nor its length."""
    text = encode_pending_handle(handle, KEYS)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda one: one != text[at]))
    for bad in (text[:at] + other + text[at + 1 :], text[:at], text + other, text + "="):
        with pytest.raises(BadHandleError):
            decode_pending_handle(bad, KEYS)


def test_unsigned_handles_are_good_only_where_they_are_accepted() -> None:
    """They are of an older version, or of somebody who can count."""
    with pytest.raises(BadHandleError):
        decode_pending_handle(encode_pending_handle(EXAMPLE), KEYS)
    assert decode_pending_handle(encode_pending_handle(EXAMPLE), HandleKeys({8: b"n" * 32}, 8))


def test_a_tag_is_of_one_kind_of_handle() -> None:
    """Nobody makes a transaction id of a receipt handle's tag."""
    assert KEYS.seal(HandleKind.RECEIPT, b"same") != KEYS.seal(HandleKind.PENDING, b"same")


@pytest.mark.parametrize("text", ["", " ", "=", "x", ID, "ü" * 40, "A" * 44, "+/" * 22])
def test_other_texts_are_no_handles(text: str) -> None:
    """Blank, message ids, not ASCII, zeros."""
    with pytest.raises(BadHandleError):
        decode_pending_handle(text)


def test_a_handle_by_id_has_an_id() -> None:
    """Without message id it would name nothing."""
    with pytest.raises(BadHandleError):
        decode_pending_handle(encode_pending_handle(EXAMPLE._replace(message_id="")))
