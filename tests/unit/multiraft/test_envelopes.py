"""Envelopes: what goes over the wire between nodes comes out as it went in, or not at all."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_multiraft.base.ports import Envelope
from strata_multiraft.peering.envelopes import (
    HEADER_BYTES,
    EnvelopeError,
    decode,
    encode,
    size_bytes,
)
from strata_raft import Configuration, Entry, EntryKind, SnapshotMetadata
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

u64 = st.integers(0, 2**64 - 1)
ids = st.frozensets(u64, max_size=4)
addresses = {"source": u64, "target": u64, "term": u64}


@st.composite
def append_requests(draw: st.DrawFn) -> AppendRequest:
    previous_index = draw(st.integers(0, 2**60))
    drawn = draw(
        st.lists(
            st.tuples(u64, st.sampled_from(EntryKind), st.lists(st.binary(), max_size=3)),
            max_size=5,
        )
    )
    entries = tuple(
        Entry(term, index, kind, tuple(payload))
        for index, (term, kind, payload) in enumerate(drawn, previous_index + 1)
    )
    return AppendRequest(
        draw(u64), draw(u64), draw(u64), previous_index, draw(u64), entries, draw(u64)
    )


messages = st.one_of(
    append_requests(),
    st.builds(
        AppendResponse,
        **addresses,
        index=u64,
        rejected=st.booleans(),
        hint_index=u64,
        hint_term=u64,
    ),
    st.builds(Heartbeat, **addresses, commit=u64, context=u64),
    st.builds(HeartbeatResponse, **addresses, context=u64, applied=u64),
    st.builds(
        VoteRequest,
        **addresses,
        last_index=u64,
        last_term=u64,
        pre_vote=st.booleans(),
        transfer=st.booleans(),
        applied=u64,
    ),
    st.builds(VoteResponse, **addresses, granted=st.booleans(), pre_vote=st.booleans()),
    st.builds(
        SnapshotRequest,
        **addresses,
        snapshot=st.builds(SnapshotMetadata, u64, u64, st.builds(Configuration, ids, ids, ids)),
    ),
    st.builds(TimeoutNow, **addresses),
)
envelopes = st.lists(st.builds(Envelope, st.integers(0, 2**32 - 1), messages), max_size=6)


def joined(envelope: Envelope) -> Envelope:
    """An envelope whose payloads are one buffer each, as they arrive."""
    message: Any = envelope.message
    if not isinstance(message, AppendRequest):
        return envelope
    entries = tuple(Entry(e.term, e.index, e.kind, (b"".join(e.payload),)) for e in message.entries)
    return Envelope(
        envelope.raft_group,
        AppendRequest(
            message.source,
            message.target,
            message.term,
            message.previous_index,
            message.previous_term,
            entries,
            message.commit,
        ),
    )


@given(envelopes)
@settings(max_examples=300, deadline=None)
def test_envelopes_come_back(sent: list[Envelope]) -> None:
    """Every field of every message arrives; payloads arrive joined."""
    assert decode(encode(sent)) == [joined(envelope) for envelope in sent]


@given(envelopes)
def test_size_is_known_before(sent: list[Envelope]) -> None:
    """The size that budgets count is the frame's, but for messages whose size differs little."""
    real = len(encode(sent)) - HEADER_BYTES
    assert abs(sum(map(size_bytes, sent)) - real) <= 128 * len(sent)


@given(envelopes, st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_found(sent: list[Envelope], data: st.DataObject) -> None:
    """A frame with one changed byte, cut or extended, is an EnvelopeError."""
    frame = bytearray(encode(sent))
    position = data.draw(st.integers(0, len(frame) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "extend"]))
    if how == "flip":
        frame[position] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del frame[position:]
    else:
        frame += b"\0"
    with pytest.raises(EnvelopeError):
        decode(bytes(frame))


@given(envelopes, st.data())
@settings(max_examples=300, deadline=None)
def test_a_wrong_frame_with_a_right_crc_is_no_crash(
    sent: list[Envelope], data: st.DataObject
) -> None:
    """Bytes that were wrong before they were summed are envelopes or an EnvelopeError."""
    body = bytearray(encode(sent)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    frame = _summed(bytes(body[:cut]), data.draw(st.integers(0, 8)))
    try:
        decode(frame)
    except EnvelopeError as error:
        assert str(error)


def _summed(body: bytes, count: int) -> bytes:
    header = struct.pack(">2sBxII", b"RE", 1, count, len(body))
    crc = google_crc32c.extend(google_crc32c.value(header), body)
    return header + struct.pack(">I", crc) + body


def test_layout_is_that_of_the_page() -> None:
    """The bytes of one heartbeat are those that docs/data-layout.md describes."""
    frame = encode([Envelope(7, Heartbeat(1, 2, 3, commit=4, context=5))])
    assert frame[:4] == b"RE\x02\x00"
    assert frame[4:12] == bytes.fromhex("00000001 00000030")
    assert frame[16:] == bytes.fromhex(
        "05 00 0000 00000007 0000000000000001 0000000000000002 0000000000000003"
        "0000000000000004 0000000000000005"
    )


def test_unknown_version_is_named() -> None:
    """A frame of a later version is refused with its number."""
    frame = bytearray(encode([]))
    frame[2] = 9
    with pytest.raises(EnvelopeError, match="version 9"):
        decode(bytes(frame))
