"""Rules of the front's relay, over socket pairs, and of its newcomers."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strata_edge.connection_guard import ConnectionGuard, Debt
from strata_edge.front import Front
from strata_edge.front_config import FrontConfig
from strata_edge.front_tls import tls_context
from strata_edge.guard_limits import GuardLimits
from strata_edge.http2_frames import GOAWAY
from strata_edge.large_requests import LargeRequests
from strata_edge.relay import Poller, Relay
from strata_edge.shares import Shares
from strata_runtime.tls import Certificate, self_signed
from strata_runtime.tls_policy import TlsPolicy
from tests.contract import http2_raw as raw

BUFFER_BYTES = 4_096


@dataclass
class Ends:
    """A relay and the far sides of its two sockets."""

    poller: Poller
    relay: Relay
    client: socket.socket
    server: socket.socket
    closed: list[bool]

    def settle(self) -> None:
        """Let the relay do all that it can do now; fail if it never comes to rest."""
        for _ in range(2_000):
            if not self.poller._epoll.poll(0):
                return
            self.poller.run_once(0)
        raise AssertionError("the relay does not come to rest")


class _AnyBytes(ConnectionGuard):
    """Clients here say what is no HTTP/2."""

    def __init__(self) -> None:
        debt = Debt(lambda: 0.0)
        super().__init__(
            GuardLimits(), LargeRequests(Shares(1 << 30, 1 << 30, 1 << 30)), debt, address=debt
        )

    def from_client(self, data: memoryview) -> float:
        return 0.0


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, relay_client = socket.socketpair()
    server, relay_server = socket.socketpair()
    for end in (client, relay_client, server, relay_server):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    poller, closed = Poller(), list[bool]()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    relay = Relay(
        poller,
        relay_client,
        relay_server,
        buffer=buffer,
        on_closed=lambda: closed.append(True),
        guard=_AnyBytes(),
        on_paused=lambda _relay, _seconds: None,
    )
    yield Ends(poller, relay, client, server, closed)
    relay.close()
    client.close()
    server.close()
    poller._epoll.close()


def _send_until_full(end: socket.socket, ends: Ends, data: bytes) -> int:
    """Send until the relay takes no more; return how much went out."""
    sent = 0
    while sent < len(data):
        try:
            sent += end.send(data[sent:])
        except BlockingIOError:
            ends.settle()
            try:
                sent += end.send(data[sent:])
            except BlockingIOError:
                break
    return sent


def _receive_all(end: socket.socket, ends: Ends) -> bytes:
    received = b""
    while True:
        ends.settle()
        try:
            data = end.recv(65_536)
        except BlockingIOError:
            return received
        if not data:
            return received
        received += data


def test_both_directions(ends: Ends) -> None:
    """Bytes pass both ways unchanged."""
    ends.client.send(b"question")
    assert _receive_all(ends.server, ends) == b"question"
    ends.server.send(b"answer")
    assert _receive_all(ends.client, ends) == b"answer"


def test_slow_reader_is_bounded_and_loses_nothing(ends: Ends) -> None:
    """With a reader that stops, little is held; when it reads again every byte arrives."""
    data = bytes(range(256)) * 4_000
    sent = _send_until_full(ends.server, ends, data)
    assert sent < 200_000, "the relay or the kernel took everything"
    received = b""
    while len(received) < len(data):
        received += _receive_all(ends.client, ends)
        sent += _send_until_full(ends.server, ends, data[sent:])
    assert received == data


def test_slow_reader_does_not_stop_the_other_direction(ends: Ends) -> None:
    """While one direction is blocked the other one flows."""
    _send_until_full(ends.server, ends, bytes(1_000_000))
    ends.client.send(b"still here")
    assert _receive_all(ends.server, ends) == b"still here"


def test_half_close_is_passed_on(ends: Ends) -> None:
    """The client's end of sending reaches the server, whose answer still reaches the client."""
    ends.client.send(b"last words")
    ends.client.shutdown(socket.SHUT_WR)
    assert _receive_all(ends.server, ends) == b"last words"
    assert ends.server.recv(1) == b""
    assert ends.closed == []
    ends.server.send(b"answer")
    assert _receive_all(ends.client, ends) == b"answer"
    ends.server.close()
    ends.settle()
    assert ends.client.recv(1) == b""
    assert ends.closed == [True]


def test_close_after_slow_reader_delivers_what_was_sent(ends: Ends) -> None:
    """A server that sends and closes at once loses nothing for a slow client."""
    sent = _send_until_full(ends.server, ends, bytes(50_000))
    ends.server.close()
    ends.settle()
    assert ends.closed == []
    assert len(_receive_all(ends.client, ends)) == sent
    ends.client.close()
    ends.settle()
    assert ends.closed == [True]


def test_client_gone_closes_both(ends: Ends) -> None:
    """A client that vanishes ends the server's side too, once, and leaves nothing registered."""
    ends.client.close()
    ends.settle()
    ends.server.close()
    ends.settle()
    assert ends.closed == [True]
    assert ends.poller._handlers == {}


def frame(payload_bytes: int) -> bytes:
    """An HTTP/2 frame."""
    return payload_bytes.to_bytes(3) + bytes(6) + b"x" * payload_bytes


def test_a_client_is_sent_away_between_two_frames(ends: Ends) -> None:
    """Not before the server's first frame, not inside one; bytes flow on afterwards."""
    ends.relay.send_away()
    assert _receive_all(ends.client, ends) == b""
    ends.server.send(frame(10)[:12])
    assert _receive_all(ends.client, ends) == frame(10)[:12]
    ends.server.send(frame(10)[12:])
    assert _receive_all(ends.client, ends) == frame(10)[12:] + GOAWAY
    ends.server.send(frame(5))
    assert _receive_all(ends.client, ends) == frame(5)
    ends.client.send(b"request")
    assert _receive_all(ends.server, ends) == b"request"


def test_a_client_that_is_sent_away_later_is_told_at_once(ends: Ends) -> None:
    """Nothing has to come from the server first."""
    ends.server.send(frame(10) + frame(0))
    assert _receive_all(ends.client, ends) == frame(10) + frame(0)
    ends.relay.send_away()
    assert _receive_all(ends.client, ends) == GOAWAY


def test_a_slow_reader_is_sent_away_behind_what_it_has_not_read(ends: Ends) -> None:
    """The frame waits with the others."""
    data = frame(60_000)
    sent = _send_until_full(ends.server, ends, data)
    assert sent < len(data)
    ends.relay.send_away()
    received = b""
    while len(received) < len(data):
        received += _receive_all(ends.client, ends)
        sent += _send_until_full(ends.server, ends, data[sent:])
    received += _receive_all(ends.client, ends)
    assert received == data + GOAWAY


def test_stale_events_are_ignored() -> None:
    """An event for a descriptor that an earlier handler of the round removed is ignored."""
    poller = Poller()
    pairs = [socket.socketpair() for _ in range(2)]
    handled: list[int] = []

    def handle(descriptor: int) -> None:
        handled.append(descriptor)
        for near, _ in pairs:
            poller.remove(near.fileno())

    for near, far in pairs:
        poller.add(near.fileno(), select.EPOLLIN, lambda _, n=near: handle(n.fileno()))  # type: ignore[misc]
        far.send(b"x")
    poller.run_once(1)
    assert len(handled) == 1
    for pair in pairs:
        for end in pair:
            end.close()
    poller._epoll.close()


TIMEOUT_MS = 10_000
LARGE_BYTES, MAX_LARGE_BYTES = 10_000, 40_000


class FrontUnderTest:
    """A front that is driven step by step, with a clock of its own and a server behind it."""

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        self.now_s = 1_000.0
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.control, its_control = socket.socketpair()
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(folder / "server.sock"))
        self.server.listen()
        self.clients: list[socket.socket] = []
        config = FrontConfig(
            listen_descriptor=listener.detach(),
            control_descriptor=its_control.detach(),
            server_socket=str(folder / "server.sock"),
            certificate_file=str(certificate.certificate_file),
            key_file=str(certificate.key_file),
            tls_only=False,
            tls_policy=TlsPolicy(),
            max_connections=100,
            max_connections_per_address=100,
            relay_buffer_bytes=BUFFER_BYTES,
            handshake_timeout_ms=TIMEOUT_MS,
            large_requests=Shares(MAX_LARGE_BYTES, MAX_LARGE_BYTES, MAX_LARGE_BYTES),
            guard=GuardLimits(large_request_bytes=LARGE_BYTES, min_upload_bytes_per_s=100),
        )
        tls = tls_context(config)
        self.front = Front(config, tls, lambda: self.now_s)
        self.front.begin()

    def connect(self, said: bytes) -> socket.socket:
        """Connect a client that says something, and let the front see it."""
        client = socket.create_connection(self.address)
        client.setblocking(False)
        self.clients.append(client)
        self.serve()
        if said:
            client.sendall(said)
        self.serve()
        return client

    def serve(self) -> None:
        """Let the front do all that it can do now."""
        for _ in range(3):
            self.front.serve_once(0.01)

    def pass_time(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds
        self.serve()

    def close(self) -> None:
        """Free every descriptor; the front's own with it."""
        self.control.send(b"drain\n")
        for end in (*self.clients, self.server):
            end.close()
        self.serve()
        assert self.front._report.connections == 0
        self.front._poller._epoll.close()
        self.front._control.close()
        self.control.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def front(tmp_path: Path, certificate: Certificate) -> Iterator[FrontUnderTest]:
    under_test = FrontUnderTest(tmp_path, certificate)
    yield under_test
    under_test.close()


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="half a ClientHello"),
    ],
)
def test_a_client_has_a_limited_time_to_begin(front: FrontUnderTest, said: bytes) -> None:
    """Silence and a handshake that never ends are closed when the time is over, and counted."""
    client = front.connect(said)
    front.pass_time(TIMEOUT_MS / 1_000 - 1)
    assert not _is_closed(client)
    front.pass_time(1)
    assert _is_closed(client)
    assert front.front._report.handshake_timeouts == 1
    assert front.front._report.connections == 0


def test_bytes_that_trickle_give_a_handshake_no_more_time(front: FrontUnderTest) -> None:
    """The time runs from the acceptance, whatever comes meanwhile."""
    client = front.connect(b"\x16")
    for byte in b"\x03\x01\x02\x00":
        front.pass_time(2)
        client.sendall(bytes([byte]))
    front.pass_time(2)
    assert _is_closed(client)


def test_who_has_spoken_may_be_idle_for_ever(front: FrontUnderTest) -> None:
    """After the first bytes of HTTP/2 no deadline holds; only the silent one beside it goes."""
    silent = front.connect(b"")
    speaker = front.connect(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    front.pass_time(100 * TIMEOUT_MS / 1_000)
    assert _is_closed(silent)
    assert not _is_closed(speaker)
    assert front.front._report.handshake_timeouts == 1
    assert front.front._report.connections == 1


def test_a_drain_sends_everybody_away(front: FrontUnderTest) -> None:
    """A served client, one that only connected, and one in the queue of the port are sent away."""
    served = front.connect(b"PRI")
    (its_server, _) = front.server.accept()
    its_server.send(frame(3))
    front.serve()
    silent = front.connect(b"")
    queued = socket.create_connection(front.address)
    queued.setblocking(False)
    front.clients.append(queued)
    front.control.send(b"drain\n")
    front.serve()
    assert served.recv(99) == frame(3) + GOAWAY
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(front.address, 1)
    queued.send(b"PRI")
    front.serve()
    (late_server, _) = front.server.accept()
    late_server.send(frame(3))
    front.serve()
    assert queued.recv(99) == frame(3) + GOAWAY
    assert not _is_closed(silent)
    front.pass_time(2)
    assert _is_closed(silent), "nobody waits long for who says nothing"
    for end in (its_server, late_server):
        end.close()


def _large_request(stream: int, sent_bytes: int) -> bytes:
    begun = raw.message(bytes(MAX_LARGE_BYTES))[:sent_bytes]
    headers = raw.frame(raw.HEADERS, raw.END_HEADERS, stream, b"h")
    return headers + raw.data_frames(stream, begun, end=False)


def test_a_large_request_that_stands_still_is_ended(front: FrontUnderTest) -> None:
    """A client that holds awaited room and sends nothing for 5 s loses the connection."""
    still = front.connect(raw.hello() + _large_request(1, 1_000))
    slow = front.connect(raw.hello() + _large_request(1, 1_000))
    front.front.end_standstill()
    front.pass_time(4)
    front.front.end_standstill()
    assert not _is_closed(still)
    front.pass_time(2)
    front.front.end_standstill()
    assert _is_closed(still)
    assert not _is_closed(slow)
    assert front.front._report.ended == 1
    front.pass_time(60)
    front.front.end_standstill()
    assert not _is_closed(slow), "nobody waits for its room"


def test_a_large_request_that_goes_on_is_not_ended(front: FrontUnderTest) -> None:
    """Slow is not still: 133 bytes a second where 100 are asked."""
    slow = front.connect(raw.hello() + _large_request(1, 1_000))
    front.connect(raw.hello() + _large_request(1, 1_000))
    for _ in range(10):
        front.front.end_standstill()
        slow.sendall(raw.data_frames(1, bytes(400), end=False))
        front.pass_time(3)
    assert not _is_closed(slow)


def test_a_large_request_that_trickles_is_ended(front: FrontUnderTest) -> None:
    """Slower than what is asked, a request keeps its room until others wait, and no longer."""
    slow = front.connect(raw.hello() + _large_request(1, 1_000))
    for number in range(20):
        if number == 10:
            assert not _is_closed(slow), "nobody waits for its room"
            front.connect(raw.hello() + _large_request(1, 1_000))
        front.front.end_standstill()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            slow.sendall(raw.data_frames(1, bytes(250), end=False))
        front.pass_time(3)
    assert _is_closed(slow)
    assert front.front._report.ended == 1


def test_the_last_frame_of_a_large_request_may_not_trickle(front: FrontUnderTest) -> None:
    """A frame that ends its request has begun: the request has not come before its last byte."""
    slow = front.connect(raw.hello() + _large_request(1, 1_000))
    slow.sendall(raw.data_frames(1, bytes(10_000), end=True)[:100])
    front.serve()
    front.connect(raw.hello() + _large_request(1, 1_000))
    for _ in range(4):
        front.front.end_standstill()
        front.pass_time(3)
    assert _is_closed(slow)


def test_who_resets_without_end_is_not_read(front: FrontUnderTest) -> None:
    """After too many resets a connection is not read until its debt is paid."""
    resets = b"".join(raw.frame(raw.RST_STREAM, 0, 1, bytes(4)) for _ in range(1_500))
    client = front.connect(raw.hello() + resets)
    for _ in range(20):
        front.serve()
    assert front.front._report.pauses == 1
    [relay] = front.front._relays.values()
    seen = relay.received_bytes
    client.sendall(raw.frame(raw.SETTINGS, 0, 0))
    front.serve()
    assert relay.received_bytes == seen
    front.pass_time(11)
    assert relay.received_bytes == len(raw.hello() + resets) + 9
    client.sendall(resets)
    front.serve()
    assert front.front._report.connections == 1
    client.close()
    front.serve()
    assert front.front._report.connections == 0, "who leaves in debt is not read to the end"
