"""Ports for servers that tests start: each lane of a run has its own, none is given out twice."""

from __future__ import annotations

import atexit
import os
import random
import re
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
# Below the range from which the kernel takes ports for outgoing connections: one of those would
# take the port between this choice and the server's start.
PORTS = range(20_000, 32_000)
LANES = 8


class NoFreePortError(Exception):
    """All ports of this lane are in use."""


def free_port() -> int:
    """Return a port that nothing listens on, and that nobody else is given.

    Raises:
        NoFreePortError: there is none left.
    """
    try:
        return next(_free)
    except StopIteration:
        raise NoFreePortError(f"no free port in {_of_this_lane()}") from None


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row.

    Raises:
        NoFreePortError: there are none.
    """
    lane = _of_this_lane()
    for first in random.sample(lane[: len(lane) - count], len(lane) - count):
        if all(_hold(port) for port in range(first, first + count)):
            return first
    raise NoFreePortError(f"no {count} free ports in a row in {lane}")


def free_endpoints(count: int) -> list[str]:
    """Return addresses of this machine at free ports."""
    return [f"{HOST}:{free_port()}" for _ in range(count)]


def _of_this_lane() -> range:
    number = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % LANES
    return PORTS[number::LANES]


def _choose() -> Iterator[int]:
    for port in random.sample(_of_this_lane(), len(_of_this_lane())):
        if _hold(port):
            yield port


def _hold(port: int) -> bool:
    """Keep a port from whoever looks for a free one, until this process ends."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    holder = socket.socket()
    # A server that has this option, too, may listen there; a probe without it sees a taken port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return False
    atexit.register(holder.close)
    return True


_free = _choose()
