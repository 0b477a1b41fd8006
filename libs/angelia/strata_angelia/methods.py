"""Table of callable methods, built from a service's descriptor and its handler.

Only this module knows how an RPC's name becomes a handler's method name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from strata_angelia.classes import CLASS_OF, CallClass, class_of
from strata_angelia.ports import UNKNOWN_METHOD, AngeliaError, CallContext

UnaryFunction = Callable[[Any, CallContext], Awaitable[Message]]
StreamFunction = Callable[[Any, CallContext], AsyncIterator[Message]]


_IMMEDIATE = "_answers_at_once"

Handler = TypeVar("Handler", bound=Callable[..., Any])


def immediate(function: Handler) -> Handler:
    """Mark a handler's unary method that awaits nothing.

    A transport may carry such a call out where its request arrives: no task, no deadline.
    """
    setattr(function, _IMMEDIATE, True)
    return function


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of a registered service.

    Attributes:
        path: `/package.Service/Rpc`.
        streaming: whether the response is a stream.
        call_class: whose budget its calls use.
        function: the handler's method: a coroutine function, or for a stream an async generator.
        is_immediate: it awaits nothing (`immediate`).
    """

    path: str
    request_type: type[Message]
    response_type: type[Message]
    streaming: bool
    call_class: CallClass
    function: Callable[[Any, CallContext], Any]
    is_immediate: bool = False

    def answer(self, request: Message, context: CallContext) -> Message:
        """Carry out an immediate call.

        Raises:
            RuntimeError: the method waits for something.
        """
        work = self.function(request, context)
        try:
            work.send(None)
        except StopIteration as done:
            return cast("Message", done.value)
        work.close()
        raise RuntimeError(f"{self.path} is marked as immediate and waits")

    def unary(self, request: Message, context: CallContext) -> Awaitable[Message]:
        """Begin a unary call."""
        return cast("Awaitable[Message]", self.function(request, context))

    def stream(self, request: Message, context: CallContext) -> AsyncIterator[Message]:
        """Begin a streaming call."""
        return cast("AsyncIterator[Message]", self.function(request, context))


class Rpc(NamedTuple):
    """One RPC of a service, and the handler's method for it.

    Attributes:
        name: as in the proto file.
        path: `/package.Service/Rpc`.
        streaming: whether the response is a stream.
        function: the handler's method.
    """

    name: str
    path: str
    request_type: type[Message]
    response_type: type[Message]
    streaming: bool
    function: Callable[..., Any]


def rpcs_of(
    service: ServiceDescriptor, *handlers: object, beside: Collection[str] = ()
) -> list[Rpc]:
    """Find the method of every RPC of `service`, in the order of the proto file.

    Args:
        service: described by its proto file.
        handlers: which have the methods; each RPC's is in one of them.
        beside: RPCs that are served in another way.

    Raises:
        TypeError: an RPC has no method, or one in two handlers, or a request stream; or there is
            no RPC of a name in `beside`.
    """
    unknown = set(beside) - {rpc.name for rpc in service.methods}
    if unknown:
        raise TypeError(f"{service.full_name} has no {', '.join(sorted(unknown))}")
    return [
        Rpc(
            rpc.name,
            f"/{service.full_name}/{rpc.name}",
            message_factory.GetMessageClass(rpc.input_type),
            message_factory.GetMessageClass(rpc.output_type),
            rpc.server_streaming,
            _function(service, rpc, handlers),
        )
        for rpc in service.methods
        if rpc.name not in beside
    ]


def _function(
    service: ServiceDescriptor, rpc: MethodDescriptor, handlers: Sequence[object]
) -> Callable[..., Any]:
    path, name = f"/{service.full_name}/{rpc.name}", snake_case(rpc.name)
    if rpc.client_streaming:
        raise TypeError(f"{path}: request streams are not part of Angelia")
    found = [function for one in handlers if callable(function := getattr(one, name, None))]
    if len(found) != 1:
        names = ", ".join(type(one).__name__ for one in handlers)
        raise TypeError(f"{names} {'lacks' if not found else 'has twice'} {name} for {path}")
    return cast("Callable[..., Any]", found[0])


class MethodTable:
    """All methods of a server, in the order of registration.

    Args:
        classes: class of calls by the RPC's path.
    """

    def __init__(self, classes: Mapping[str, CallClass] = CLASS_OF) -> None:
        self._classes = classes
        self._methods: dict[str, Method] = {}

    @property
    def methods(self) -> Mapping[str, Method]:
        """By path."""
        return self._methods

    def add(self, service: ServiceDescriptor, handler: object) -> None:
        """Add every RPC of `service`.

        Raises:
            TypeError: the handler lacks a method, or an RPC has a request stream.
            ValueError: the service is registered already.
        """
        added: dict[str, Method] = {}
        for rpc in rpcs_of(service, handler):
            if rpc.path in self._methods:
                raise ValueError(f"{service.full_name} is registered twice")
            added[rpc.path] = Method(
                rpc.path,
                rpc.request_type,
                rpc.response_type,
                rpc.streaming,
                class_of(rpc.path, self._classes),
                rpc.function,
                getattr(rpc.function, _IMMEDIATE, False),
            )
        self._methods.update(added)

    def find(self, path: str, *, streaming: bool) -> Method:
        """The method at `path`.

        Raises:
            AngeliaError: UNKNOWN_METHOD; a unary call of a streaming method counts as one.
        """
        method = self._methods.get(path)
        if method is None or method.streaming != streaming:
            raise AngeliaError(UNKNOWN_METHOD, path)
        return method


def snake_case(rpc: str) -> str:
    """`GetOffsets` -> `get_offsets`, `PutKVPair` -> `put_kv_pair`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", rpc).lower()
