"""Serves `apache.rocketmq.v2.Admin` on an edge: failures become a Status.

No client id is required: operators' tools are not clients.
"""

from __future__ import annotations

from typing import cast

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import admin_pb2
from strata_angelia.methods import Rpc, rpcs_of
from strata_broker.base import errors
from strata_broker.base.audit import AuditTrail
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.metadata.requests import operator_of
from strata_broker.servicers.audit import audited_call
from strata_edge.ports import CallError, CallInfo, UnaryHandler
from strata_mq.requests import RequestError

_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
SERVICE: str = _SERVICE.full_name


def serve(edge: Methods, *servicers: object, trail: AuditTrail) -> None:
    """Serve every RPC by the method of its name, in snake_case, that one of the servicers has.

    A method takes the caller and the request and returns the response, without a status when all
    is well. Changes are told to `trail`.

    Raises:
        TypeError: an RPC has no method, or two.
    """
    for rpc in rpcs_of(_SERVICE, *servicers):
        edge.add_unary(rpc.path, _answering(rpc, trail))


def _answering(rpc: Rpc, trail: AuditTrail) -> UnaryHandler:
    async def answer(data: bytes, info: CallInfo) -> bytes:
        try:
            request = parse(rpc.request_type, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from error
        try:
            with audited_call(trail, rpc.name, request, info):
                response = cast("Message", await rpc.function(operator_of(info.metadata), request))
        except RequestError as bad:
            response = rpc.response_type(status=errors.status_of(bad))
        else:
            _set_ok(response)
        return response.SerializeToString()

    return answer


def _set_ok(response: Message) -> None:
    """Set the status of a response to OK unless it has another one already."""
    if "status" in response.DESCRIPTOR.fields_by_name and not response.HasField("status"):
        response.status.CopyFrom(errors.ok_status())  # type: ignore[attr-defined]
