"""The process that owns the advertised port: TLS or plaintext, by the first byte.

`python -m strata_edge.front CONFIG` is started by `front_process.FrontProcess`, which hands it
the listening socket and one end of a control socket. It is a process of its own because a relay
inside the server would share the server's GIL.

- A connection costs one socket until its first byte: the server is connected to only then.
- A connection has a limited time, from its acceptance on, for its first byte and the TLS handshake;
  every HTTP/2 client speaks at once. After that it may be idle without limit.
- The first byte 0x16 begins a TLS handshake, which the front finishes; any other byte is plaintext.
- A first byte of 0, in plaintext or behind TLS, begins another protocol, which the server takes on
  a socket of its own (handover.py).
- The front dies with its parent: by SIGKILL from the kernel and by the end of the control socket.

When it drains it tells clients to make their next calls elsewhere; that is all it knows of HTTP/2.
It imports neither grpc nor an event loop: it starts quickly and stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import heapq
import json
import os
import resource
import select
import signal
import socket
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice

from strata_edge.addresses import network_of
from strata_edge.connection_guard import ConnectionGuard, Debt, NoGuard, RelayGuard
from strata_edge.front_config import (
    PLAIN,
    SECURED,
    FrontConfig,
    FrontReport,
    other_client_name,
)
from strata_edge.front_newcomers import Newcomers, Spoken
from strata_edge.front_tls import certificate_versions, tls_context
from strata_edge.large_requests import LargeRequests
from strata_edge.pace import LeastPace
from strata_edge.relay import Poller, Relay

_PR_SET_PDEATHSIG = 1
_MAX_ACCEPTS = 64  # per round, so that connected clients are served in between
_REPORT_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 0.02
_DRAIN_HANDSHAKE_S = 1.0
_MAX_TOLD_AWAY = 1_000  # clients in one line to the parent
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Front:
    """Accepts connections and starts a relay for each that says something.

    Args:
        config: descriptors, limits.
        tls: for clients whose first byte begins a handshake.
        monotonic_s: time, for the deadline of newcomers.
    """

    def __init__(
        self,
        config: FrontConfig,
        tls: ssl.SSLContext,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._monotonic_s = monotonic_s
        self._poller = Poller()
        self._buffer = memoryview(bytearray(config.relay_buffer_bytes))
        self._listener = socket.socket(fileno=config.listen_descriptor)
        self._control = socket.socket(fileno=config.control_descriptor)
        # Clients that spoke while the server's backlog was full; at most max_connections.
        self._waiting: deque[Spoken] = deque()
        # By the client's descriptor; at most max_connections. The others speak another protocol.
        self._relays: dict[int, Relay] = {}
        self._others: dict[int, Relay] = {}
        # The connection of every client by its descriptor, and how many each address has.
        self._address_of: dict[int, str] = {}
        self._of_address: Counter[str] = Counter()
        # Connections that are not read, with the time at which they are again.
        self._paused: list[tuple[float, int, Relay]] = []
        self._pauses = 0
        self._debts: dict[str, Debt] = {}
        self._large = LargeRequests(config.large_requests)
        # Connections with large requests for whose room others wait.
        self._paces: dict[Relay, LeastPace] = {}
        self._report = FrontReport()
        self._reported = FrontReport()
        self._newcomers = Newcomers(
            config,
            tls,
            self._poller,
            report=self._report,
            monotonic_s=monotonic_s,
            on_spoken=self._begin_relay,
            close=self._close,
        )
        self._certificate_seen = certificate_versions(config)
        # The beginning of an order of the parent.
        self._said = b""
        # Clients that were asked to go, and of whom the parent has not heard.
        self._sent_away: list[str] = []
        self._accepting = False
        self._draining = False
        self._serial = 0

    def run(self) -> None:
        """Serve until the parent is gone or, after `drain`, the last connection."""
        self.begin()
        next_report_s = self._monotonic_s() + _REPORT_INTERVAL_S
        while not (self._draining and not self._report.connections):
            self.serve_once(_REPORT_INTERVAL_S)
            if self._monotonic_s() >= next_report_s:
                self.read_certificate_again()
                self.end_standstill()
                self._send_report()
                next_report_s = self._monotonic_s() + _REPORT_INTERVAL_S

    def begin(self) -> None:
        """Accept from now on."""
        for end in (self._listener, self._control):
            end.setblocking(False)
        self._poller.add(self._control.fileno(), select.EPOLLIN, self._on_control)
        self._accept_again()
        self._tell("ready")

    def serve_once(self, timeout_s: float) -> None:
        """Do what can be done now; wait for it at most `timeout_s`."""
        hurry = self._waiting or not (self._accepting or self._draining)
        if self._paused:
            timeout_s = min(timeout_s, max(0.0, self._paused[0][0] - self._monotonic_s()))
        self._poller.run_once(_RETRY_INTERVAL_S if hurry else timeout_s)
        if hurry:
            self._retry()
        self._newcomers.close_late()
        while self._paused and self._paused[0][0] <= self._monotonic_s():
            heapq.heappop(self._paused)[2].resume()

    def end_standstill(self) -> None:
        """End connections whose large requests come too slowly while others wait for their room.

        Called once a second or so.
        """
        now_s = self._monotonic_s()
        self._debts = {
            address: debt
            for address, debt in self._debts.items()
            if debt.left_s or address in self._of_address
        }
        paces, self._paces = self._paces, {}
        if not self._large.waiting:
            return
        slow = []
        for relay in self._relays.values():
            left_bytes = relay.guard.delaying_bytes()
            if not left_bytes:
                continue
            done_bytes = relay.guard.large_bytes
            pace = paces.get(relay) or LeastPace(
                self._config.guard.least_upload, now_s, done_bytes, left_bytes=left_bytes
            )
            self._paces[relay] = pace
            if pace.is_too_slow(now_s, done_bytes, left_bytes=left_bytes):
                slow.append(relay)
        for relay in slow:
            if not relay.closed:
                self._report.ended += 1
                relay.close()

    def read_certificate_again(self) -> None:
        """Take a pair of files that has changed for new connections; a bad one changes nothing."""
        seen = certificate_versions(self._config)
        if seen == self._certificate_seen:
            return
        self._certificate_seen = seen
        try:
            self._newcomers.tls = tls_context(self._config)
        except OSError as error:
            if certificate_versions(self._config) != seen:
                # They are being replaced: the next look finds both.
                return
            self._report.certificate_error = str(error) or type(error).__name__
            return
        self._report.certificates += 1
        self._report.certificate_error = ""

    def _on_control(self, _: int) -> None:
        try:
            said = self._control.recv(64)
        except ConnectionError:
            said = b""
        if not said:
            raise SystemExit(0)  # the parent is gone
        *orders, self._said = (self._said + said).split(b"\n")
        for order in orders:
            if order.startswith(b"away "):
                self._send_some_away(int(order[5:]))
            elif order.startswith(b"end "):
                self._end_connection(order[4:].decode())
            elif not self._draining:
                self._drain()

    def _send_some_away(self, most: int) -> None:
        """Ask clients to go, those first that came first, and tell the parent which.

        The newest client was perhaps sent here by another broker a moment ago.
        """
        staying = (relay for relay in self._relays.values() if not relay.leaving)
        for relay in list(islice(staying, most)):
            self._sent_away.append(relay.peer())
            self._report.sent_away += 1
            self._report.leaving += 1
            relay.leave()
        # Before the answer: who has it finds the clients counted.
        self._send_report()
        told = self._sent_away[:_MAX_TOLD_AWAY]
        if self._tell(json.dumps({"sent_away": told})):
            del self._sent_away[: len(told)]

    def _end_connection(self, peer: str) -> None:
        """End the connection of a client whose answers keep others from theirs."""
        for relay in list(self._relays.values()):
            if relay.peer() == peer:
                self._report.ended += 1
                relay.close()

    def _drain(self) -> None:
        """Take what has connected already, close the port, send everybody away."""
        if self._accepting:
            self._on_accept(select.EPOLLIN)
        self._draining = True
        self._stop_accepting()
        self._listener.close()
        # A client that is about to speak gets the time for it.
        self._newcomers.hurry(_DRAIN_HANDSHAKE_S)
        for relay in list(self._relays.values()):
            relay.send_away()

    def _on_accept(self, _: int) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                client, address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._stop_accepting()
                return
            network = network_of(address[0])
            if not self._has_room(network):
                self._report.refused += 1
                client.close()
                continue
            client.setblocking(False)
            self._report.connections += 1
            descriptor = client.fileno()
            self._address_of[descriptor] = network
            self._of_address[network] += 1
            self._newcomers.add(client)

    def _has_room(self, address: str) -> bool:
        config = self._config
        return (
            self._report.connections < config.max_connections
            and self._of_address[address] < config.max_connections_per_address
        )

    def _forget(self, descriptor: int) -> None:
        """A client's connection has ended, or is about to."""
        self._report.connections -= 1
        address = self._address_of.pop(descriptor)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def _begin_relay(self, spoken: Spoken) -> None:
        """Connect to the server; the client stays unregistered until that is done."""
        client, is_other = spoken.client, spoken.is_other
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.setblocking(False)
            server.bind(self._name_of(spoken))
            config = self._config
            server.connect(config.other_socket if is_other else config.server_socket)
        except BlockingIOError:  # the server's backlog is full
            server.close()
            self._waiting.append(spoken)
            return
        except OSError:
            server.close()
            self._close(client.fileno(), client)
            return
        descriptor = client.fileno()
        guard = NoGuard() if is_other else self._guard(self._address_of[descriptor])
        # It may be called before the relay is known: the first bytes may be a fault.
        on_closed = partial(self._on_relay_closed, descriptor, guard)
        relay = Relay(
            self._poller,
            client,
            server,
            buffer=self._buffer,
            on_closed=on_closed,
            guard=guard,
            on_paused=self._on_paused,
            first=spoken.first,
        )
        if is_other:
            self._report.handed_over += 1
        if relay.closed:
            return
        if is_other:
            self._others[descriptor] = relay
            self._report.relayed += 1
        else:
            self._relays[descriptor] = relay
            if self._draining:
                relay.send_away()

    def _guard(self, address: str) -> ConnectionGuard:
        debt = self._debts.setdefault(address, Debt(self._monotonic_s))
        own = Debt(self._monotonic_s)
        return ConnectionGuard(self._config.guard, self._large, own, address=debt, network=address)

    def _on_paused(self, relay: Relay, pause_s: float) -> None:
        self._report.pauses += 1
        self._pauses += 1
        heapq.heappush(self._paused, (self._monotonic_s() + pause_s, self._pauses, relay))

    def _name_of(self, spoken: Spoken) -> str:
        """An abstract socket name that ends with the client's address: the server's `peer`."""
        host, port = spoken.client.getpeername()[:2]
        self._serial += 1
        if spoken.is_other:
            security = SECURED if isinstance(spoken.client, ssl.SSLSocket) else PLAIN
            return other_client_name(os.getpid(), self._serial, security, f"{host}:{port}")
        return f"\0strata-front/{os.getpid()}/{self._serial}/{host}:{port}"

    def _on_relay_closed(self, descriptor: int, guard: RelayGuard) -> None:
        if self._others.pop(descriptor, None) is not None:
            self._report.relayed -= 1
        relay = self._relays.pop(descriptor, None)
        if relay is not None and relay.leaving:
            self._report.leaving -= 1
        if guard.fault:
            self._report.ended += 1
        self._forget(descriptor)

    def _close(self, descriptor: int, client: socket.socket) -> None:
        """Close a client that has no relay and is not registered any more."""
        self._forget(descriptor)
        client.close()

    def _retry(self) -> None:
        for _ in range(len(self._waiting)):
            self._begin_relay(self._waiting.popleft())
        if not (self._accepting or self._draining):
            self._accept_again()

    def _accept_again(self) -> None:
        self._poller.add(self._listener.fileno(), select.EPOLLIN, self._on_accept)
        self._accepting = True

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._poller.remove(self._listener.fileno())
            self._accepting = False

    def _send_report(self) -> None:
        self._report.large_bytes = self._large.held_bytes
        self._report.large_waiting = self._large.waiting
        if self._report != self._reported:
            self._reported = FrontReport(**asdict(self._report))
            self._tell(json.dumps(asdict(self._report)))

    def _tell(self, line: str) -> bool:
        # A busy parent misses a report; the next one has the totals. A lost parent is noticed
        # by `_on_control`.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._control.send(line.encode() + b"\n")
            return True
        return False


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        raise SystemExit(0)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say_why_not(control_descriptor: int, error: OSError) -> None:
    with socket.socket(fileno=control_descriptor) as control:
        control.send(json.dumps({"failed": str(error) or type(error).__name__}).encode() + b"\n")


def main() -> None:
    """Entry point of the process."""
    _die_with_parent()
    # Both reach the whole process group; the parent drains first and then ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _raise_descriptor_limit()
    config = FrontConfig.from_json(sys.argv[1])
    try:
        tls = tls_context(config)
    except OSError as error:
        _say_why_not(config.control_descriptor, error)
        raise SystemExit(1) from None
    Front(config, tls).run()


if __name__ == "__main__":
    main()
