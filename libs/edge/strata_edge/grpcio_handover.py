"""The socket by which the front passes on connections of another protocol."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from strata_edge.front_config import SECURED, other_client_of
from strata_edge.handover import HandedConnection, Handover

_BACKLOG = 1_024
_MAX_ACCEPTS = 64  # per turn of the event loop
_RETRY_S = 0.02


class HandoverSocket:
    """See the module docstring. The front connects here, once for each such connection.

    Args:
        path: of the socket, in a private folder.
        handover: takes the connections.
    """

    def __init__(self, path: Path, handover: Handover) -> None:
        self._handover = handover
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        """Take no more connections."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, name = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # There are no descriptors: the front's connections wait in the backlog meanwhile.
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_RETRY_S, self._listen)
                return
            accepted.setblocking(False)
            security, peer = other_client_of(name)
            self._handover.give(HandedConnection(accepted, peer, security == SECURED))
