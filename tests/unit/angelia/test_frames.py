"""Bytes of the tcp transport: everything encoded is decoded, nothing else is accepted."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_angelia import frames
from strata_angelia.frames import FrameError, FrameReader, ReceivedFrame, WireFrameKind
from strata_angelia.methods import snake_case

KINDS = st.sampled_from(list(WireFrameKind))
FRAMES = st.builds(
    ReceivedFrame,
    KINDS,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.binary(max_size=300),
)


def _bytes_of(frame: ReceivedFrame) -> bytes:
    size = len(frame.payload)
    head = frames.header(frame.kind, size, method_id=frame.method_id, call_id=frame.call_id)
    return head + frame.payload


@given(sent=st.lists(FRAMES, max_size=8), cuts=st.lists(st.integers(1, 700), max_size=30))
def test_any_cut_of_the_stream_gives_the_same_frames(
    sent: list[ReceivedFrame], cuts: list[int]
) -> None:
    """However the bytes are cut into pieces, the same frames come out in order."""
    data = b"".join(map(_bytes_of, sent))
    reader, received = FrameReader(), list[ReceivedFrame]()
    for cut in cuts:
        piece, data = data[:cut], data[cut:]
        received += reader.feed(piece)
    received += reader.feed(data)
    assert received == sent


@given(garbage=st.binary(max_size=2_000))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    """Any bytes give frames, FrameError or nothing yet; no other error."""
    try:
        for frame in FrameReader(1_000).feed(garbage):
            assert len(frame.payload) <= 1_000
    except FrameError:
        pass


def test_oversize_is_refused_by_the_header_alone() -> None:
    """A frame above the limit is refused before its payload is there."""
    with pytest.raises(FrameError, match="1001 bytes, the limit is 1000"):
        FrameReader(1_000).feed(frames.header(WireFrameKind.REQUEST, 1_001))


def test_unknown_kind() -> None:
    """A kind this version does not know is refused."""
    with pytest.raises(FrameError, match="unknown frame kind 99"):
        FrameReader().feed(struct.pack(">IBxHI", 0, 99, 0, 0))


def test_layout() -> None:
    """The header's bytes are those that the module's page shows."""
    head = frames.header(WireFrameKind.REQUEST, 0x01020304, method_id=0x0506, call_id=0x0708090A)
    assert head == bytes([1, 2, 3, 4, 3, 0, 5, 6, 7, 8, 9, 10])


@given(
    timeout_ms=st.one_of(st.none(), st.integers(1, 10**7)),
    trace=st.text(st.characters(codec="ascii"), max_size=255),
    body=st.binary(max_size=100),
)
def test_request(timeout_ms: int | None, trace: str, body: bytes) -> None:
    """Deadline, trace parent and request survive."""
    timeout_s = None if timeout_ms is None else timeout_ms / 1_000
    decoded = frames.decode_request(frames.encode_request_prefix(timeout_s, trace) + body)
    assert decoded[1:] == (trace, body)
    assert (decoded[0] is None) == (timeout_s is None)
    if timeout_s is not None:
        assert decoded[0] == pytest.approx(timeout_s, abs=0.0011)


def test_spent_deadline_is_still_a_deadline() -> None:
    """A deadline of zero is not sent as "none"."""
    assert frames.decode_request(frames.encode_request_prefix(0.0, ""))[0] == 0.001


@given(payload=st.binary(max_size=40))
def test_short_payloads_are_frame_errors(payload: bytes) -> None:
    """No payload decoder raises anything but FrameError."""
    for decode in (
        frames.decode_hello,
        frames.decode_welcome,
        frames.decode_request,
        frames.decode_credit,
    ):
        try:
            decode(payload)
        except FrameError:
            continue


def test_handshake() -> None:
    """Both sides of the handshake survive."""
    hello = frames.Hello(2, 65_536, 1_000_000, "protobuf", "c1")
    assert frames.decode_hello(hello.encode()) == hello
    welcome = frames.Welcome(2, 1_000_000, ((False, "/a.B/C"), (True, "/a.B/D")), "c1")
    assert frames.decode_welcome(welcome.encode()) == welcome
    nobody = frames.Welcome(2, 1_000_000, ((False, "/a.B/C"),))
    assert frames.decode_welcome(nobody.encode()) == nobody
    with pytest.raises(FrameError, match="not an Angelia handshake"):
        frames.decode_hello(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("rpc", "method"),
    [
        ("Append", "append"),
        ("GetOffsets", "get_offsets"),
        ("ForwardToDeadLetter", "forward_to_dead_letter"),
        ("PutKVPair", "put_kv_pair"),
        ("GetV2Status", "get_v2_status"),
    ],
)
def test_method_names(rpc: str, method: str) -> None:
    """An RPC's handler method is its name in snake case."""
    assert snake_case(rpc) == method
