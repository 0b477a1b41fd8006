"""Serves the services of `strata.admin.v1` on an edge: bytes in, bytes out."""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from strata.admin.v1 import admin_pb2
from strata_angelia.methods import Rpc, rpcs_of
from strata_angelia.ports import AngeliaError
from strata_broker.base.audit import AuditTrail
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.servicers.audit import audited_call
from strata_broker.servicers.errors import call_error
from strata_edge.ports import CallError, CallInfo, UnaryHandler
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError

_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SERVICE: str = _SERVICE.full_name


def serve(edge: Methods, *servicers: object, trail: AuditTrail) -> None:
    """Serve `AdminService`; see `serve_service`."""
    serve_service(_SERVICE, edge, *servicers, trail=trail)


def serve_service(
    service: ServiceDescriptor, edge: Methods, *servicers: object, trail: AuditTrail
) -> None:
    """Serve every RPC by the method of its name, in snake_case, that one of the servicers has.

    A method takes the request and returns the response; what it raises becomes a gRPC status with
    one line. Changes are told to `trail`.

    Raises:
        TypeError: an RPC has no method, or two.
    """
    for rpc in rpcs_of(service, *servicers):
        edge.add_unary(rpc.path, _answering(rpc, trail))


def _answering(rpc: Rpc, trail: AuditTrail) -> UnaryHandler:
    async def answer(data: bytes, info: CallInfo) -> bytes:
        try:
            request = parse(rpc.request_type, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from error
        try:
            with audited_call(trail, rpc.name, request, info):
                response = cast("Message", await rpc.function(request))
        except (RequestError, MetaRefused, AngeliaError) as failure:
            raise call_error(failure) from failure
        return response.SerializeToString()

    return answer
