"""An unexpected failure of a request ends only that request (rule 33).

A handler refuses with a `RequestError`. Any other exception is a mistake of ours, or comes from a
peer that answers oddly. The caller gets INTERNAL_SERVER_ERROR, the log has the stack, and no other
request is affected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from strata_broker.base import errors
from strata_edge.ports import (
    CallError,
    CallInfo,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_mq.requests import Code, RequestError
from strata_runtime.tasks import RequestTasks, TooManyTasksError


def unexpected() -> RequestError:
    """Return the error that a client gets for an unexpected failure."""
    return RequestError(
        Code.INTERNAL_SERVER_ERROR, "the request failed unexpectedly; the broker's log says why"
    )


@contextmanager
def contained(requests: RequestTasks, name: str, *refusals: type[Exception]) -> Iterator[None]:
    """Turn an unexpected exception of a request's handler into INTERNAL_SERVER_ERROR.

    Args:
        requests: logs and counts the failure.
        name: of the work for the request.
        refusals: expected exceptions beside `RequestError` and `CallError`.

    Raises:
        RequestError: INTERNAL_SERVER_ERROR; expected exceptions pass unchanged.
    """
    try:
        yield
    except (RequestError, CallError):
        raise
    except refusals:
        raise
    except TooManyTasksError:
        raise errors.too_many_requests() from None
    except Exception as failure:
        requests.failed(name, failure)
        raise unexpected() from failure


@contextmanager
def passed_over(requests: RequestTasks, name: str) -> Iterator[None]:
    """Continue a permanent loop when one item fails unexpectedly.

    Args:
        requests: logs and counts the failure.
        name: of the work for the item.
    """
    try:
        yield
    except Exception as failure:  # noqa: BLE001 - whatever it is, it ends this item only
        requests.failed(name, failure)


class Methods(Protocol):
    """Takes handlers of rare RPCs: an edge, or an edge that contains their failures."""

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `strata_edge.ports.Edge.add_unary`."""

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `strata_edge.ports.Edge.add_server_stream`."""

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `strata_edge.ports.Edge.add_stream`."""


class BothMethods:
    """`Methods` that gives each handler to two others.

    Args:
        first: the one.
        second: the other.
    """

    def __init__(self, first: Methods, second: Methods) -> None:
        self._both = (first, second)

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`."""
        for methods in self._both:
            methods.add_unary(path, handler)

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `Methods.add_server_stream`."""
        for methods in self._both:
            methods.add_server_stream(path, handler)

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `Methods.add_stream`."""
        for methods in self._both:
            methods.add_stream(path, handler)


class ContainingEdge:
    """An edge whose handlers' unexpected failures end their calls with INTERNAL.

    Args:
        edge: where handlers are put.
        requests: logs and counts failures.
    """

    def __init__(self, edge: Methods, requests: RequestTasks) -> None:
        self._edge = edge
        self._requests = requests

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`."""

        async def serve(data: bytes, info: CallInfo) -> bytes:
            with self._ending_the_call(path):
                return await handler(data, info)

        self._edge.add_unary(path, serve)

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `Methods.add_server_stream`."""

        async def serve(data: bytes, info: CallInfo) -> AsyncIterator[bytes | Sequence[bytes]]:
            with self._ending_the_call(path):
                responses = handler(data, info)
                async with aclosing(responses):  # type: ignore[type-var]
                    async for response in responses:
                        yield response

        self._edge.add_server_stream(path, serve)

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `Methods.add_stream`."""

        async def serve(requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
            with self._ending_the_call(path):
                responses = handler(requests, info)
                async with aclosing(responses):  # type: ignore[type-var]
                    async for response in responses:
                        yield response

        self._edge.add_stream(path, serve)

    @contextmanager
    def _ending_the_call(self, path: str) -> Iterator[None]:
        try:
            with contained(self._requests, path):
                yield
        except RequestError as failure:
            raise CallError("INTERNAL", failure.text) from failure
