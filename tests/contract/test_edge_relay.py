"""What must hold for the front's relay, over socket pairs."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from strata_edge.relay import Poller, Relay

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


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, relay_client = socket.socketpair()
    server, relay_server = socket.socketpair()
    for end in (client, relay_client, server, relay_server):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    poller, closed = Poller(), list[bool]()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    relay = Relay(poller, relay_client, relay_server, buffer, lambda: closed.append(True))
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
