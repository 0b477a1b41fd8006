"""Keeps handlers of rare RPCs for who calls them without an edge."""

from __future__ import annotations

from strata_edge.ports import ServerStreamHandler, StreamHandler, UnaryHandler


class KeptMethods:
    """`Methods` that keeps the handlers instead of serving them.

    Attributes:
        unary: of calls of one answer, by path.
        server_streams: of those whose answer is a stream, by path.
    """

    def __init__(self) -> None:
        self.unary: dict[str, UnaryHandler] = {}
        self.server_streams: dict[str, ServerStreamHandler] = {}

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`."""
        self.unary[path] = handler

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `Methods.add_server_stream`."""
        self.server_streams[path] = handler

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Keep nothing: streams in both directions need an edge."""
