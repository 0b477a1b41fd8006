"""How a service of our own is served: a method for each RPC, and one way to refuse for them all.

A handler's method returns the response of a call that is carried out, and raises where it is not;
what a refusal looks like in a response is said once for the whole service (`Answers`). Every
other exception goes on to the transport, which ends the call with INTERNAL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, Protocol, cast

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata_angelia.methods import Rpc, rpcs_of, snake_case
from strata_angelia.ports import CallContext, Server


class Answers(Protocol):
    """The fields that all responses of a service share."""

    @property
    def refusal(self) -> type[Exception]:
        """The exception by which a method refuses."""

    def refuse(self, response: Any, refusal: Any) -> None:
        """Put a refusal into an empty response."""

    def complete(self, response: Any) -> None:
        """Add to the response of a unary call that was carried out."""


def serve(server: Server, service: ServiceDescriptor, handler: object, answers: Answers) -> None:
    """Serve every RPC of `service` by the handler's method of its name, in snake_case.

    A stream that is refused ends with a response that says so.

    Raises:
        TypeError: the handler lacks a method.
        ValueError: the service is registered already.
    """
    answering = SimpleNamespace()
    for rpc in rpcs_of(service, handler):
        function = (_stream if rpc.streaming else _unary)(rpc, answers)
        setattr(answering, snake_case(rpc.name), function)
    server.register(service, answering)


def _unary(rpc: Rpc, answers: Answers) -> object:
    refusal = answers.refusal

    async def answer(request: Message, context: CallContext) -> Message:
        try:
            response = cast("Message", await rpc.function(request, context))
        except refusal as refused:
            response = rpc.response_type()
            answers.refuse(response, refused)
            return response
        answers.complete(response)
        return response

    return answer


def _stream(rpc: Rpc, answers: Answers) -> object:
    refusal = answers.refusal

    async def answer(request: Message, context: CallContext) -> AsyncIterator[Message]:
        try:
            async with aclosing(rpc.function(request, context)) as responses:
                async for response in responses:
                    yield response
        except refusal as refused:
            last = rpc.response_type()
            answers.refuse(last, refused)
            yield last

    return answer
