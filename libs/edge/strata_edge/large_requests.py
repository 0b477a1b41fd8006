"""Bytes of large requests of all connections that are being received or not yet answered.

A server collects a request, copies it and holds it until it is answered, so the bytes of large
requests under way are limited. Further large requests wait at their clients. Connections take
turns, so that a connection with many large requests does not delay the others; the requests of one
connection go in the order in which they began. Small requests are not counted: they fit in a
stream's first window.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class UploadingConnection(Protocol):
    """One connection, as the budget sees it."""

    def admit(self, stream: int) -> None:
        """Let a stream that waited go on."""


class LargeRequests:
    """See the module docstring.

    Invariant: who waits fits in as soon as nobody holds anything, whatever its size.

    Args:
        limit_bytes: of all requests under way.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[tuple[UploadingConnection, int], int] = {}
        # Connections in the order of their turns; each with its streams and their sizes.
        self._waiting: OrderedDict[UploadingConnection, OrderedDict[int, int]] = OrderedDict()
        self._granting = False

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def ask(self, who: UploadingConnection, stream: int, size_bytes: int) -> bool:
        """Return whether a request may come at once; if not, `admit` is called in its turn.

        The next message of a stream takes the place of the one before.
        """
        key = who, stream
        self.held_bytes -= self._held.pop(key, 0)
        self._forget(who, stream)
        if not self._waiting and self._fits(size_bytes):
            self._hold(key, size_bytes)
            return True
        self._waiting.setdefault(who, OrderedDict())[stream] = size_bytes
        self._grant()
        return key in self._held

    def end(self, who: UploadingConnection, stream: int) -> None:
        """A request was answered, or given up; nothing if it is unknown."""
        key = who, stream
        self._forget(who, stream)
        self.held_bytes -= self._held.pop(key, 0)
        self._grant()

    def _forget(self, who: UploadingConnection, stream: int) -> None:
        streams = self._waiting.get(who)
        if streams is not None:
            streams.pop(stream, None)
            if not streams:
                del self._waiting[who]

    def _fits(self, size_bytes: int) -> bool:
        return not self._held or self.held_bytes + size_bytes <= self._limit_bytes

    def _hold(self, key: tuple[UploadingConnection, int], size_bytes: int) -> None:
        self._held[key] = size_bytes
        self.held_bytes += size_bytes

    def _grant(self) -> None:
        # To let one go on may end a connection, and with it what another holds.
        if self._granting:
            return
        self._granting = True
        while self._waiting:
            who, streams = next(iter(self._waiting.items()))
            stream, size_bytes = next(iter(streams.items()))
            if not self._fits(size_bytes):
                break
            self._waiting.move_to_end(who)
            self._forget(who, stream)
            self._hold((who, stream), size_bytes)
            who.admit(stream)
        self._granting = False
