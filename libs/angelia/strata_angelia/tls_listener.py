"""Accepts connections of the tcp transport over TLS, or over TLS and plaintext.

The first byte says what a caller speaks: a TLS handshake begins with 22, an Angelia handshake with
0, the highest byte of a short length. Each connection gets the certificate that is the newest when
it begins. A caller that is refused before a connection exists is counted, and told in the log at a
limited rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from strata_angelia.frames import WireFrameKind, encode_error, header
from strata_angelia.ports import FORBIDDEN
from strata_angelia.tls import PeerTls, tls_reason
from strata_runtime.listening import endpoint_of, listening
from strata_runtime.logs import get_logger
from strata_runtime.tasks import Tasks, TooManyTasksError
from strata_runtime.timeouts import Timeout

_TLS_FIRST_BYTE = b"\x16"
_BACKLOG = 512
_HANDSHAKE_TIMEOUT_S = 5.0
_ACCEPT_PAUSE_S = 0.1
# The kernel's, or this process's, are used up; the connection stays in the backlog.
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ONLY_TLS = "this server takes TLS only"


class TlsListener:
    """See the module docstring.

    Args:
        tls: certificates and mode.
        make: makes the protocol of a connection.
        max_handshakes: connections that have not said what they speak, or shake hands; more are
            closed.
        on_refused: told the reason of each refusal, for counting.
    """

    def __init__(
        self,
        tls: PeerTls,
        make: Callable[[], asyncio.Protocol],
        *,
        max_handshakes: int,
        on_refused: Callable[[], None],
    ) -> None:
        self._tls = tls
        self._make = make
        self._on_refused = on_refused
        self._log = get_logger("angelia")
        self._listeners: list[socket.socket] = []
        self._accepting = Tasks("angelia.accept", self._failed, max_tasks=16)
        self._handshakes = Tasks("angelia.handshake", self._failed, max_tasks=max_handshakes)

    async def start(self, host: str, port: int) -> str:
        """Listen on every address of a host; return the first one's endpoint.

        Raises:
            ListenError: it cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        with listening(host, port, "for other nodes"):
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                self._listeners.append(_listen(family, str(address[0]), port))
                # The other addresses get the port that was free at the first.
                port = port or self._listeners[0].getsockname()[1]
        for listener in self._listeners:
            self._accepting.spawn("accept", self._accept(listener))
        return endpoint_of(*self._listeners[0].getsockname()[:2])

    async def stop(self) -> None:
        """Take no new connection; those that shake hands are closed."""
        await self._accepting.stop()
        await self._handshakes.stop()
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError as error:
                # One that was reset before it was accepted is over already.
                if error.errno in _NO_DESCRIPTORS:
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            connected.setblocking(False)
            try:
                self._handshakes.spawn("handshake", self._begin(connected))
            except TooManyTasksError:
                connected.close()
                self._on_refused()

    async def _begin(self, connected: socket.socket) -> None:
        """Find out what a caller speaks, and give it a connection."""
        peer = ""
        try:
            peer = endpoint_of(*connected.getpeername()[:2])
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with Timeout(_HANDSHAKE_TIMEOUT_S):
                first = await _first_byte(connected)
                await self._connect(connected, peer, first)
        except (OSError, TimeoutError) as error:
            connected.close()
            self._refuse(peer, "it was silent" if isinstance(error, TimeoutError) else error)
        except BaseException:
            connected.close()
            raise

    async def _connect(self, connected: socket.socket, peer: str, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        if not first:
            connected.close()
        elif first == _TLS_FIRST_BYTE:
            await loop.connect_accepted_socket(
                self._make,
                connected,
                ssl=self._tls.credentials.server,
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
            )
        elif self._tls.mode == "optional":
            await loop.connect_accepted_socket(self._make, connected)
        else:
            goodbye = encode_error(FORBIDDEN, _ONLY_TLS)
            with contextlib.suppress(OSError):
                connected.send(header(WireFrameKind.GOODBYE, len(goodbye)) + goodbye)
            connected.close()
            self._refuse(peer, "it does not speak TLS")

    def _refuse(self, peer: str, reason: str | OSError | TimeoutError) -> None:
        self._on_refused()
        text = reason if isinstance(reason, str) else tls_reason(reason)
        self._log.warning("a process was refused before it could call", peer=peer, reason=text)
        self._tls.refusals.tell(peer, text)

    def _failed(self, name: str, failure: BaseException) -> None:
        get_logger("angelia").error("accepting failed", task=name, exc_info=failure)


def _listen(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def _first_byte(connected: socket.socket) -> bytes:
    """Return the first byte that a caller sent, which stays in the socket; empty: it has gone."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connected.fileno(), on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(connected.fileno())
    return connected.recv(1, socket.MSG_PEEK)
