"""Pods without containers: a network namespace for each, with a cable to a node.

Enough for what concerns the network alone: who reaches whom, through the tables of a real node.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kubernetes.rig import network
from tests.kubernetes.rig.processes import run

_NEW_NETWORK = 0x4000_0000
_GATEWAY = "169.254.1.1"
_ANSWER_S = 3.0
_libc = ctypes.CDLL(None, use_errno=True)

Target = tuple[str, int]
"""Address and port."""


class Cables:
    """Namespaces that are plugged into node 0, and their sockets; `close` removes all."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._listening = ExitStack()

    def plug(self, address: str) -> str:
        """Make a namespace with an address; return its name."""
        number = len(self._names)
        name, cable, node = f"{network.CONTROL}-pod-{number}", f"pod{number}", _node()
        network.remove(name)
        run("ip", "netns", "add", name)
        self._names.append(name)
        ends = (cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip(node, "link", "add", *ends)
        _ip(node, "address", "add", f"{_GATEWAY}/32", "dev", cable)
        _ip(node, "link", "set", cable, "up")
        _ip(node, "route", "replace", f"{address}/32", "dev", cable)
        _ip(name, "link", "set", "lo", "up")
        _ip(name, "address", "add", f"{address}/32", "dev", "eth0")
        _ip(name, "link", "set", "eth0", "up")
        _ip(name, "route", "replace", _GATEWAY, "dev", "eth0", "scope", "link")
        _ip(name, "route", "replace", "default", "via", _GATEWAY)
        return name

    def listen(self, name: str, ports: Iterable[int]) -> None:
        """Listen in a namespace; the kernel accepts connections by itself."""
        with inside(name):
            for port in ports:
                listener = socket.create_server(("0.0.0.0", port), backlog=1_024)
                self._listening.enter_context(listener)

    def close(self) -> None:
        """Close all sockets and remove all namespaces, with their cables."""
        self._listening.close()
        for name in self._names:
            network.remove(name)
        self._names.clear()


def reached(name: str, targets: Iterable[Target]) -> set[Target]:
    """Return the targets that a connection from a namespace reaches.

    Args:
        name: of the namespace.
        targets: those that answer nothing for three seconds are not reached.
    """
    with ExitStack() as stack, inside(name):
        waiting: dict[int, tuple[socket.socket, Target]] = {}
        poll = select.poll()
        for target in targets:
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(target)
            waiting[caller.fileno()] = (caller, target)
            poll.register(caller, select.POLLOUT)
        found = set()
        ends_s = time.monotonic() + _ANSWER_S
        while waiting and (left_s := ends_s - time.monotonic()) > 0:
            for number, _ in poll.poll(left_s * 1_000):
                caller, target = waiting.pop(number)
                poll.unregister(caller)
                if caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.add(target)
        return found


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Let this thread make its sockets in a namespace."""
    own = Path("/proc/thread-self/ns/net").open("rb")  # noqa: SIM115  # closed by the block below
    with own, Path("/run/netns", name).open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _node() -> str:
    return network.node_namespace(0)


def _ip(name: str, *arguments: str) -> None:
    run("nsenter", f"--net=/run/netns/{name}", "ip", *arguments)
