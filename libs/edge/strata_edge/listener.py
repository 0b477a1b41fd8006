"""The listening socket of an edge."""

from __future__ import annotations

import socket

from strata_runtime.listening import listening

_BACKLOG = 4_096


def open_listener(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Take the port; connections queue from now on.

    Args:
        host: address to listen on; without brackets.
        port: 0 takes any free one.
        is_shared: other processes of this user listen on it too; Linux spreads connections.

    Raises:
        ListenError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit both (Linux); keepalive finds clients that lost power.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with listening(host, port, "for clients"):
            listener.bind((host, port))
            listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
