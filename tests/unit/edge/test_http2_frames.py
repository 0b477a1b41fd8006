"""Where a frame ends is known however the bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_edge.http2_frames import GOAWAY, FrameBoundary

frames = st.lists(st.integers(0, 70_000), min_size=1, max_size=5)


def frame(payload_bytes: int) -> bytes:
    """A DATA frame of stream 1."""
    return payload_bytes.to_bytes(3) + bytes.fromhex("00 00 00000001") + b"x" * payload_bytes


@given(frames, st.lists(st.integers(1, 30_000), max_size=40))
def test_only_the_end_of_a_frame_is_one(sizes: list[int], cuts: list[int]) -> None:
    """After every chunk it is told whether a frame has just ended."""
    stream = b"".join(map(frame, sizes))
    ends = {sum(9 + size for size in sizes[: at + 1]) for at in range(len(sizes))}
    boundary = FrameBoundary()
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
    boundary = FrameBoundary()
    boundary.pass_over(memoryview(GOAWAY))
    assert boundary.reached
    assert GOAWAY[3:9] == b"\x07\x00\x00\x00\x00\x00"
    assert GOAWAY[9:] == b"\x7f\xff\xff\xff\x00\x00\x00\x00"
