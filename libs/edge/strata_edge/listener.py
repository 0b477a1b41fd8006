"""The listening socket of an edge."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from strata_runtime.listening import listening

_BACKLOG = 4_096


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How TCP finds clients that have gone without a word (tcp(7): TCP_KEEPIDLE and others).

    Attributes:
        idle_ms: after so long without a word it asks; whole seconds count.
        interval_ms: so long after a question it asks again; whole seconds count.
        questions: so many without an answer end the connection.
    """

    idle_ms: int = 60_000
    interval_ms: int = 15_000
    questions: int = 4


_KEEPALIVE = Keepalive()


def open_listener(
    host: str, port: int, *, is_shared: bool = False, keepalive: Keepalive = _KEEPALIVE
) -> socket.socket:
    """Take the port; connections queue from now on.

    Args:
        host: address to listen on; without brackets.
        port: 0 takes any free one.
        is_shared: other processes of this user listen on it too; Linux spreads connections.
        keepalive: of its connections.

    Raises:
        ListenError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit all of these (Linux); keepalive finds clients that lost power.
        # Not TCP_USER_TIMEOUT: it would also end clients that read slowly.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive.idle_ms // 1_000)
        interval_s = keepalive.interval_ms // 1_000
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keepalive.questions)
        with listening(host, port, "for clients"):
            listener.bind((host, port))
            listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
