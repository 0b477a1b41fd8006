"""Edges that share a port, as the workers of a broker do: all serve, and strangers are refused."""

from __future__ import annotations

import socket

import pytest

from strata_edge.listener import open_listener
from strata_runtime.listening import ListenError, hold_shared

HOST, PURPOSE = "127.0.0.1", "for clients"


def test_connections_reach_every_listener_of_a_port() -> None:
    """Linux spreads them; the socket that holds the port takes none."""
    holder = hold_shared(HOST, 0, PURPOSE)
    port = holder.getsockname()[1]
    listeners = [open_listener(HOST, port, is_shared=True) for _ in range(2)]
    clients = [socket.create_connection((HOST, port), timeout=5) for _ in range(64)]
    taken = []
    for listener in listeners:
        listener.setblocking(False)
        taken.append(0)
        try:
            while True:
                listener.accept()[0].close()
                taken[-1] += 1
        except BlockingIOError:
            pass
    for each in (holder, *listeners, *clients):
        each.close()

    assert sum(taken) == 64
    assert all(taken)


def test_a_port_that_is_held_is_nobody_else_s() -> None:
    """Neither an edge that shares nothing nor another machine gets it, with or without workers."""
    holder = hold_shared(HOST, 0, PURPOSE)
    port = holder.getsockname()[1]
    with pytest.raises(ListenError, match="another process has the port"):
        open_listener(HOST, port)
    listener = open_listener(HOST, port, is_shared=True)
    for take in (open_listener, lambda host, port: hold_shared(host, port, PURPOSE)):
        with pytest.raises(ListenError, match="another process has the port"):
            take(HOST, port)
    listener.close()
    holder.close()


def test_two_machines_do_not_share_a_port() -> None:
    """The second one is refused while the first one holds it, before a worker listens."""
    holder = hold_shared(HOST, 0, PURPOSE)
    with pytest.raises(ListenError, match="another process has the port"):
        hold_shared(HOST, holder.getsockname()[1], PURPOSE)
    holder.close()


def test_connections_that_end_do_not_keep_a_port_from_workers() -> None:
    """A broker that ran alone is started again with workers: its old connections do not matter."""
    alone = open_listener(HOST, 0)
    port = alone.getsockname()[1]
    client = socket.create_connection((HOST, port), timeout=5)
    served, _ = alone.accept()
    served.close()  # this side first: it keeps the port in TIME_WAIT
    assert client.recv(1) == b""
    client.close()
    alone.close()
    holder = hold_shared(HOST, port, PURPOSE)
    listeners = [open_listener(HOST, port, is_shared=True) for _ in range(2)]
    for each in (holder, *listeners):
        each.close()


def test_a_port_in_use_is_not_shared() -> None:
    """An edge that runs alone keeps its port for itself."""
    listener = open_listener(HOST, 0)
    port = listener.getsockname()[1]
    with pytest.raises(ListenError, match="another process has the port"):
        hold_shared(HOST, port, PURPOSE)
    with pytest.raises(ListenError, match="another process has the port"):
        open_listener(HOST, port, is_shared=True)
    listener.close()
