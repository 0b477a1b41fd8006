"""Adds an RPC of `apache.rocketmq.v2.Admin` to an edge: failures become a Status.

No client id is required: operators' tools are not clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import admin_pb2
from strata_broker.base import errors
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.metadata.requests import Caller, operator_of
from strata_broker.servicers.audit import audit
from strata_edge.ports import CallError, CallInfo
from strata_mq.requests import RequestError

SERVICE = "apache.rocketmq.v2.Admin"

_METHODS = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name


def add(edge: Methods, rpc: str, answer: Callable[[Caller, Any], Awaitable[Message]]) -> None:
    """Serve an RPC by a method that returns its response, without status when all is well."""
    method = _METHODS[rpc]
    request_type: type[Message] = getattr(admin_pb2, method.input_type.name)
    response_type: type[Message] = getattr(admin_pb2, method.output_type.name)

    async def serve(data: bytes, info: CallInfo) -> bytes:
        try:
            request = parse(request_type, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from error
        try:
            response = await answer(operator_of(info.metadata), request)
        except RequestError as bad:
            status = errors.status_of(bad)
        else:
            _set_ok(response)
            audit(rpc, request, info)
            return response.SerializeToString()
        return response_type(status=status).SerializeToString()

    edge.add_unary(f"/{SERVICE}/{rpc}", serve)


def _set_ok(response: Message) -> None:
    """Set the status of a response to OK unless it has another one already."""
    if "status" in response.DESCRIPTOR.fields_by_name and not response.HasField("status"):
        response.status.CopyFrom(errors.ok_status())  # type: ignore[attr-defined]
