"""Where a frame ends is known however the bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_edge.http2_frames import GOAWAY, ServerFrames

frames = st.lists(st.integers(0, 70_000), min_size=1, max_size=5)


def frame(payload_bytes: int) -> bytes:
    """A DATA frame of stream 1."""
    return payload_bytes.to_bytes(3) + bytes.fromhex("00 00 00000001") + b"x" * payload_bytes


@given(frames, st.lists(st.integers(1, 30_000), max_size=40))
def test_only_the_end_of_a_frame_is_one(sizes: list[int], cuts: list[int]) -> None:
    """After every chunk it is told whether a frame has just ended."""
    stream = b"".join(map(frame, sizes))
    ends = {sum(9 + size for size in sizes[: at + 1]) for at in range(len(sizes))}
    boundary = ServerFrames()
    assert not boundary.reached, "nothing may stand before the server's first frame"
    at = 0
    for cut in [*cuts, *[1] * 20, len(stream)]:
        chunk = stream[at : at + cut]
        if chunk:
            boundary.pass_over(memoryview(chunk))
            at += len(chunk)
            assert boundary.reached == (at in ends)
    assert at == len(stream)


def test_goaway_is_a_whole_frame() -> None:
    """Type 7 of stream 0, eight bytes: no stream is refused, no error."""
    boundary = ServerFrames()
    boundary.pass_over(memoryview(GOAWAY))
    assert boundary.reached
    assert GOAWAY[3:9] == b"\x07\x00\x00\x00\x00\x00"
    assert GOAWAY[9:] == b"\x7f\xff\xff\xff\x00\x00\x00\x00"


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=4), st.integers(1, 20_000))
def test_nothing_stands_in_a_block_of_headers(sizes: list[int], cut: int) -> None:
    """Between HEADERS and the CONTINUATION that ends them there is no place for another frame."""
    last = len(sizes) - 1
    block = b"".join(
        size.to_bytes(3)
        + bytes([0x9 if number else 0x1, 0x4 if number == last else 0])
        + bytes.fromhex("00000001")
        + b"x" * size
        for number, size in enumerate(sizes)
    )
    stream = frame(10) + block + frame(10)
    ends = {19, 19 + len(block), len(stream)}
    boundary = ServerFrames()
    for at in range(0, len(stream), cut):
        boundary.pass_over(memoryview(stream[at : at + cut]))
        assert boundary.reached == (min(at + cut, len(stream)) in ends)
