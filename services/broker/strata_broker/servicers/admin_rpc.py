"""Adds an RPC of `strata.admin.v1.AdminService` to an edge: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from strata_angelia.ports import AngeliaError
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.servicers.audit import audit
from strata_broker.servicers.errors import call_error
from strata_edge.ports import CallError, CallInfo
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError

SERVICE = "strata.admin.v1.AdminService"

Request = TypeVar("Request", bound=Message)


def add(
    edge: Methods,
    rpc: str,
    request_type: type[Request],
    answer: Callable[[Request], Awaitable[Message]],
) -> None:
    """Serve an RPC by a method; its failures become gRPC statuses with one line."""

    async def serve(data: bytes, info: CallInfo) -> bytes:
        try:
            request = parse(request_type, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from error
        try:
            response = await answer(request)
        except (RequestError, MetaRefused, AngeliaError) as failure:
            raise call_error(failure) from failure
        audit(rpc, request, info)
        return response.SerializeToString()

    edge.add_unary(f"/{SERVICE}/{rpc}", serve)
