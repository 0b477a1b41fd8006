"""Connections of the front that have not said yet which protocol they speak.

Each has a limited time, from its acceptance on, for its first byte and its TLS handshake.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from strata_edge.front_config import FrontConfig, FrontReport
from strata_edge.handover import FIRST_BYTE
from strata_edge.relay import Poller

_TLS_HANDSHAKE = b"\x16"


class Spoken(NamedTuple):
    """A client that has said which protocol it speaks."""

    client: socket.socket
    # Bytes read of it: one behind TLS, where nothing can be looked at and left there.
    first: bytes = b""
    is_other: bool = False


class _Newcomer(NamedTuple):
    """A client that has not said anything, or has not finished its TLS handshake."""

    client: socket.socket
    deadline_s: float


class Newcomers:
    """Waits for the first byte of each client, and finishes its TLS handshake.

    Args:
        config: limits, and whether another protocol is taken.
        tls: for clients whose first byte begins a handshake.
        poller: of the front.
        report: that counts what went wrong.
        monotonic_s: time, for the deadlines.
        on_spoken: takes a client that is not registered at the poller any more.
        close: closes one, by its descriptor.

    Attributes:
        tls: for handshakes that begin from now on.
    """

    def __init__(
        self,
        config: FrontConfig,
        tls: ssl.SSLContext,
        poller: Poller,
        *,
        report: FrontReport,
        monotonic_s: Callable[[], float],
        on_spoken: Callable[[Spoken], None],
        close: Callable[[int, socket.socket], None],
    ) -> None:
        self.tls = tls
        self._config = config
        self._poller = poller
        self._report = report
        self._monotonic_s = monotonic_s
        self._on_spoken = on_spoken
        self._close = close
        # By descriptor, the one accepted first in front: all have the same time.
        self._newcomers: OrderedDict[int, _Newcomer] = OrderedDict()

    def add(self, client: socket.socket) -> None:
        """Wait for the first byte of a client that was accepted."""
        deadline_s = self._monotonic_s() + self._config.handshake_timeout_ms / 1_000
        self._newcomers[client.fileno()] = _Newcomer(client, deadline_s)
        self._poller.add(client.fileno(), select.EPOLLIN, partial(self._on_first_byte, client))

    def hurry(self, within_s: float) -> None:
        """Give all of them no more than so many seconds from now on."""
        latest_s = self._monotonic_s() + within_s
        for descriptor, (client, deadline_s) in list(self._newcomers.items()):
            self._newcomers[descriptor] = _Newcomer(client, min(deadline_s, latest_s))

    def close_late(self) -> None:
        """Close those whose time is over."""
        now_s = self._monotonic_s()
        while self._newcomers:
            if next(iter(self._newcomers.values())).deadline_s > now_s:
                return
            self._report.handshake_timeouts += 1
            self._close_first()

    def _close_first(self) -> None:
        descriptor, newcomer = self._newcomers.popitem(last=False)
        self._poller.remove(descriptor)
        self._close(descriptor, newcomer.client)

    def _on_first_byte(self, client: socket.socket, _: int) -> None:
        try:
            first = client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        descriptor = client.fileno()
        self._poller.remove(descriptor)
        if first == _TLS_HANDSHAKE:
            self._begin_handshake(descriptor)
            return
        del self._newcomers[descriptor]
        if first and self._config.tls_only:
            self._report.plaintext_refused += 1
            self._close(descriptor, client)
        elif first:
            self._on_spoken(Spoken(client, is_other=self._is_other(first)))
        else:
            self._close(descriptor, client)

    def _begin_handshake(self, descriptor: int) -> None:
        """Go on with the same descriptor, deadline and place among the newcomers."""
        client, deadline_s = self._newcomers[descriptor]
        try:
            secured = self.tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        except OSError:
            del self._newcomers[descriptor]
            self._close(descriptor, client)
            return
        self._newcomers[descriptor] = _Newcomer(secured, deadline_s)
        self._poller.add(descriptor, select.EPOLLIN, partial(self._on_handshake, secured))
        self._on_handshake(secured, select.EPOLLIN)

    def _on_handshake(self, client: ssl.SSLSocket, _: int) -> None:
        descriptor = client.fileno()
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            self._poller.change(descriptor, select.EPOLLIN)
            return
        except ssl.SSLWantWriteError:
            self._poller.change(descriptor, select.EPOLLOUT)
            return
        except OSError:
            self._report.tls_failures += 1
            self._poller.remove(descriptor)
            del self._newcomers[descriptor]
            self._close(descriptor, client)
            return
        if not self._config.other_socket or client.selected_alpn_protocol() is not None:
            self._poller.remove(descriptor)
            del self._newcomers[descriptor]
            self._on_spoken(Spoken(client))
            return
        self._poller.remove(descriptor)
        self._poller.add(descriptor, select.EPOLLIN, partial(self._on_first_secured_byte, client))
        # It may have come with the handshake.
        self._on_first_secured_byte(client, select.EPOLLIN)

    def _on_first_secured_byte(self, client: ssl.SSLSocket, _: int) -> None:
        try:
            first = client.recv(1)
        except ssl.SSLWantReadError:
            return
        except OSError:
            first = b""
        descriptor = client.fileno()
        self._poller.remove(descriptor)
        del self._newcomers[descriptor]
        if first:
            self._on_spoken(Spoken(client, first, self._is_other(first)))
        else:
            self._close(descriptor, client)

    def _is_other(self, first: bytes) -> bool:
        return bool(self._config.other_socket) and first == FIRST_BYTE
