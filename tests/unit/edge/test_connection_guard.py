"""A guard sees the same however the bytes are cut, and takes nothing else away from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_edge.client_frames import ClientFrames
from strata_edge.connection_guard import ConnectionGuard, Debt
from strata_edge.guard_limits import GuardLimits
from strata_edge.http2_frames import ServerFrames, window_update
from strata_edge.large_requests import LargeRequests
from strata_edge.shares import Shares
from tests.contract import http2_raw as raw

LARGE_BYTES, MAX_HEADER_BYTES, ROOM_BYTES = 1_000, 5_000, 4_000
LIMITS = GuardLimits(large_request_bytes=LARGE_BYTES, max_header_bytes=MAX_HEADER_BYTES)
PREFACE = raw.PREFACE


def pieces(data: bytes, cuts: list[int]) -> Iterator[memoryview]:
    """Cut bytes into pieces, again and again by the same sizes."""
    at = 0
    while at < len(data):
        for cut in [*cuts, 1 << 20]:
            if at < len(data):
                yield memoryview(data[at : at + cut])
            at += cut


def reset(stream: int) -> bytes:
    return raw.frame(raw.RST_STREAM, 0, stream, (8).to_bytes(4))


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Connection:
    """A guard, and what it said to its client."""

    def __init__(
        self, large: LargeRequests, address: Debt | None = None, limits: GuardLimits = LIMITS
    ) -> None:
        self.time = Time()
        own = Debt(self.time)
        self.guard = ConnectionGuard(limits, large, own, address=address or Debt(self.time))
        self.said = b""
        self.guard.insert_by(self._say)
        self.client(PREFACE)

    def _say(self, frames: bytes) -> None:
        self.said += frames

    def client(self, data: bytes) -> float:
        return self.guard.from_client(memoryview(data))

    def server(self, data: bytes) -> bytes:
        return bytes(self.guard.from_server(memoryview(data)))

    def begin(self, stream: int, size_bytes: int) -> None:
        """Send the beginning of a request."""
        begun = raw.message(bytes(size_bytes))[:100]
        self.client(
            raw.frame(raw.HEADERS, raw.END_HEADERS, stream, b"h")
            + raw.data_frames(stream, begun, end=False)
        )


@pytest.fixture
def large() -> LargeRequests:
    return LargeRequests(Shares(ROOM_BYTES, ROOM_BYTES, ROOM_BYTES))


cuts = st.lists(st.integers(1, 60), max_size=5)
messages = st.lists(st.integers(0, 3_000), min_size=1, max_size=4)


@given(st.lists(messages, min_size=1, max_size=4), st.integers(1, 700), cuts)
def test_large_messages_are_seen_however_bytes_are_cut(
    streams: list[list[int]], frame_bytes: int, cuts: list[int]
) -> None:
    """Each message above the limit is told once, with its stream and length, and no other."""
    data, expected = PREFACE, []
    for number, sizes in enumerate(streams):
        stream = 2 * number + 1
        body = b"".join(raw.message(bytes(size)) for size in sizes)
        data += raw.frame(raw.HEADERS, raw.END_HEADERS, stream, b"h" * 30)
        for at in range(0, len(body), frame_bytes):
            data += raw.frame(raw.DATA, 0, stream, body[at : at + frame_bytes])
        data += raw.frame(raw.DATA, raw.END_STREAM, stream)
        expected += [(stream, size) for size in sizes if size > LARGE_BYTES]
    frames = ClientFrames(LIMITS)
    for piece in pieces(data, cuts):
        frames.pass_over(piece)
    assert frames.begun == expected
    assert not frames.follows
    assert not frames.fault
    small = sum(size < 1_024 for sizes in streams for size in sizes[1:])
    assert frames.cost_s == pytest.approx(small * LIMITS.control_cost_s)


@given(st.integers(1, 20), cuts)
def test_costs_are_seen_however_bytes_are_cut(count: int, cuts: list[int]) -> None:
    """Each reset costs once; what answers the server's own pings and settings costs nothing."""
    data = PREFACE
    for number in range(count):
        data += reset(2 * number + 1) + raw.frame(raw.SETTINGS, 1, 0) + raw.frame(6, 1, 0, bytes(8))
    frames = ClientFrames(LIMITS)
    for piece in pieces(data, cuts):
        frames.pass_over(piece)
    assert frames.cost_s == pytest.approx(count * LIMITS.reset_cost_s)
    assert frames.reset == [2 * number + 1 for number in range(count)]


@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.integers(1, 2_000))), cuts, cuts)
def test_only_windows_of_held_streams_are_withheld(
    updates: list[tuple[int, int]], before: list[int], cuts: list[int]
) -> None:
    """The rest are whole frames in their order; withheld windows are added up."""
    other = raw.frame(raw.DATA, 0, 1, b"d" * 40)
    first = b"".join(window_update(*each) + other for each in updates)
    frames, out, held = ServerFrames(), b"", {3: 0}
    for piece in pieces(other, before):
        frames.pass_over(piece)
    for piece in pieces(first, cuts):
        out += frames.sift(piece, held)
    assert not frames.withholds
    kept = [window_update(*each) if each[0] == 1 else b"" for each in updates]
    assert out == b"".join(update + other for update in kept)
    assert held[3] == sum(size for stream, size in updates if stream == 3)
    assert frames.reached


def test_a_frame_whose_header_was_begun_stays_whole() -> None:
    """A window update of which a part was passed on already is not torn."""
    frames, held = ServerFrames(), {3: 0}
    update = window_update(3, 500)
    frames.pass_over(memoryview(update[:4]))
    out = frames.sift(memoryview(update[4:6]), held) + frames.sift(memoryview(update[6:]), held)
    assert update[:4] + out == update
    assert held == {3: 0}


def test_large_requests_wait_for_room_in_their_order(large: LargeRequests) -> None:
    """A client that waits hears the server's window only when there is room, first come first."""
    one, two, three = Connection(large), Connection(large), Connection(large)
    one.begin(1, 3_000)
    two.begin(1, 2_500)
    three.begin(1, 1_100)
    assert (large.held_bytes, large.waiting) == (3_000, 2)
    grant = window_update(1, 2_400)
    assert one.server(grant) == grant
    assert two.server(grant) == b""
    assert three.server(grant) == b""
    assert two.server(window_update(0, 9)) == window_update(0, 9)
    assert two.said == three.said == b""
    answer = raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, b"t")
    assert one.server(answer) == answer
    assert (two.said, three.said) == (grant, grant)
    assert (large.held_bytes, large.waiting) == (3_600, 0)


def test_connections_take_turns(large: LargeRequests) -> None:
    """A connection with many large requests does not delay another connection's only one."""
    greedy, modest = Connection(large), Connection(large)
    streams = range(1, 9, 2)
    for stream in streams:
        greedy.begin(stream, 4_000)
    modest.begin(1, 4_000)
    answers = {s: raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, s, b"t") for s in (1, 3)}
    grants = {stream: window_update(stream, 5_000) for stream in streams}
    for stream in streams:
        greedy.server(grants[stream])
    modest.server(grants[1])
    greedy.server(answers[1])
    assert (greedy.said, modest.said) == (grants[3], b"")
    greedy.server(answers[3])
    assert (greedy.said, modest.said) == (grants[3], grants[1])
    modest.server(answers[1])
    assert greedy.said == grants[3] + grants[5]
    greedy.guard.close()
    assert (large.held_bytes, large.waiting) == (0, 0)


@pytest.mark.parametrize("how", ["reset by the client", "reset by the server", "closed"])
def test_room_comes_back(large: LargeRequests, how: str) -> None:
    """However a large request ends, the next one has its room."""
    one, two = Connection(large), Connection(large)
    one.begin(1, 9_000)
    two.begin(1, 9_000)
    two.server(window_update(1, 9_000))
    assert two.said == b""
    if how == "closed":
        one.guard.close()
    elif how == "reset by the client":
        one.client(reset(1))
    else:
        one.server(reset(1))
    assert two.said == window_update(1, 9_000)
    two.guard.close()
    assert (large.held_bytes, large.waiting) == (0, 0)


def test_the_last_bytes_of_a_request_keep_its_room(large: LargeRequests) -> None:
    """A request is under way until it is answered, not until it is here."""
    one = Connection(large)
    one.begin(1, 2_000)
    one.client(raw.data_frames(1, bytes(1_905), end=True))
    assert large.held_bytes == 2_000
    assert not one.guard.delaying_bytes()
    one.server(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, b"t"))
    assert large.held_bytes == 0


def test_the_next_message_takes_the_place_of_the_last(large: LargeRequests) -> None:
    """A stream of large messages has room for one at a time."""
    one = Connection(large)
    one.begin(1, 2_000)
    one.client(raw.data_frames(1, bytes(1_905), end=False))
    one.client(raw.data_frames(1, raw.message(bytes(1_500)), end=False))
    assert large.held_bytes == 1_500


def test_who_resets_without_end_waits(large: LargeRequests) -> None:
    """A thousand resets are free, those above cost time, and the debt is paid by waiting."""
    one = Connection(large)
    assert not any(one.client(reset(2 * number + 1)) for number in range(999))
    assert sum(one.client(reset(2 * number + 1)) for number in range(999, 1_100)) > 1
    one.time.now_s += 11
    assert one.client(reset(1)) == 0
    streams = b"".join(reset(stream) for stream in range(1, 4_000, 2))
    one.server(streams)
    assert one.client(reset(1)) == pytest.approx(10), "the server's resets were caused, too"


def test_rates_and_credit_are_the_limits_ones(large: LargeRequests) -> None:
    """With half the rate and a tenth of the credit the same resets wait so much longer."""
    limits = GuardLimits(max_resets_per_s=50, control_credit_ms=1_000, max_control_pause_ms=60_000)
    one = Connection(large, limits=limits)
    resets = b"".join(reset(stream) for stream in range(1, 200, 2))
    assert one.client(resets) == pytest.approx(1.0)
    assert one.client(resets) == pytest.approx(3.0)


def test_an_address_pays_for_many_connections(large: LargeRequests) -> None:
    """Connections that are each within their own limit wait if there are too many of them."""
    time = Time()
    address = Debt(time)
    connections = [Connection(large, address) for _ in range(40)]
    waits = [
        connection.client(b"".join(reset(stream) for stream in range(1, 1_600, 2)))
        for connection in connections
    ]
    assert not any(waits[:20])
    assert all(waits[30:])
    quiet = Connection(large, address)
    assert quiet.client(reset(1)) == 0, "who has asked next to nothing is not held back"


def test_headers_without_end(large: LargeRequests) -> None:
    """A block of headers that goes on and on is a fault, as is one that is too long."""
    one = Connection(large)
    one.client(raw.frame(raw.HEADERS, 0, 1, bytes(3_000)))
    one.client(raw.frame(raw.CONTINUATION, 0, 1, bytes(2_000)))
    faults = [one.guard.fault]
    one.client(raw.frame(raw.CONTINUATION, 0, 1, bytes(1)))
    faults.append(one.guard.fault)
    assert faults == ["", "headers"]


def test_ends_are_no_business_of_who_sends_small_requests(large: LargeRequests) -> None:
    """A connection of whole small requests holds nothing."""
    one = Connection(large)
    for stream in range(1, 100, 2):
        one.client(
            raw.frame(raw.HEADERS, raw.END_HEADERS, stream, b"h" * 200)
            + raw.data_frames(stream, raw.message(bytes(900)), end=True)
        )
    assert not one.guard.delaying_bytes()
    assert (large.held_bytes, large.waiting) == (0, 0)
    assert one.said == b""


def test_a_request_that_is_reset_as_it_begins_holds_no_room(large: LargeRequests) -> None:
    """Both are in one chunk, as when a call's time is over while its request is being sent."""
    connection = Connection(large)
    begun = raw.frame(raw.HEADERS, raw.END_HEADERS, 1, b"h")
    begun += raw.data_frames(1, raw.message(bytes(3_000))[:100], end=False)
    connection.client(begun + reset(1))
    assert (large.held_bytes, large.waiting) == (0, 0)
    connection.begin(3, 2_000)
    assert large.held_bytes == 2_000


@pytest.mark.parametrize("ends_by_reset", [False, True])
def test_the_rest_of_a_request_that_was_answered_early_is_no_message(
    large: LargeRequests, *, ends_by_reset: bool
) -> None:
    """Its bytes would be taken for the length of a message of gigabytes, which waits forever."""
    connection = Connection(large)
    connection.begin(1, 3_000)
    connection.server(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, b"t"))
    assert large.held_bytes == 0
    rest = raw.frame(raw.DATA, 0, 1, b"\xff" * 50)
    # Within a frame, at its end, and between two frames.
    for cut in (5, len(rest), len(rest) + 4):
        for piece in pieces(rest + rest, [cut]):
            connection.client(bytes(piece))
    assert (large.held_bytes, large.waiting) == (0, 0)
    connection.client(
        reset(1) if ends_by_reset else raw.frame(raw.DATA, raw.END_STREAM, 1, b"\xff")
    )
    connection.begin(3, 2_000)
    assert large.held_bytes == 2_000
    assert not connection.guard.fault


def test_the_rest_of_a_frame_that_was_answered_early_is_no_message(large: LargeRequests) -> None:
    """The answer comes between two pieces of one frame."""
    connection = Connection(large)
    body = raw.message(bytes(1_500)) + b"\xff" * 500
    frames = raw.frame(raw.HEADERS, raw.END_HEADERS, 1, b"h") + raw.frame(raw.DATA, 0, 1, body)
    connection.client(frames[:200])
    assert large.held_bytes == 1_500
    connection.server(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, b"t"))
    connection.client(frames[200:])
    assert (large.held_bytes, large.waiting) == (0, 0)


def test_data_after_an_answer_to_the_headers_alone_holds_nothing(large: LargeRequests) -> None:
    """A call of an unknown method is answered before its request comes."""
    connection = Connection(large)
    connection.client(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, b"h"))
    connection.server(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, b"t"))
    connection.client(raw.frame(raw.DATA, raw.END_STREAM, 1, raw.message(bytes(3_000))))
    assert (large.held_bytes, large.waiting) == (0, 0)
    connection.client(raw.frame(raw.DATA, 0, 3, raw.message(bytes(3_000))[:100]))
    assert (large.held_bytes, large.waiting) == (0, 0), "it was never opened"
    connection.begin(5, 2_000)
    assert large.held_bytes == 2_000


def test_answers_before_the_end_are_no_fault(large: LargeRequests) -> None:
    """However many: a client sends nothing more for a stream that the server has reset."""
    connection = Connection(large)
    for number in range(2 * LIMITS.max_unfinished_requests):
        connection.begin(2 * number + 1, 1_500)
        connection.server(reset(2 * number + 1))
    assert not connection.guard.fault
    assert (large.held_bytes, large.waiting) == (0, 0)


def test_empty_frames_after_an_answer_cost_as_others(large: LargeRequests) -> None:
    """They are no request, and the server has to read them."""
    connection = Connection(large)
    connection.begin(1, 1_500)
    connection.server(reset(1))
    pauses = [connection.client(raw.frame(raw.DATA, 0, 1) * 1_000) for _ in range(100)]
    assert pauses[0] == 0
    assert pauses[-1] > 0
