"""The broker's handlers for operators, called without an edge.

Each request of an operator's tool becomes calls of `strata.admin.v1.AdminService` or
`apache.rocketmq.v2.Admin`, made through the handlers that the `strata` command reaches: with the
same rights, quotas, checks and audit trail.
"""

from __future__ import annotations

import re
from typing import TypeVar

from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.servicers import admin_rpc, rocketmq_rpc
from strata_edge.ports import (
    CallError,
    CallInfo,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_mq.requests import Code, RequestError
from strata_remoting import ResponseCode

Response = TypeVar("Response", bound=Message)

_CODES = {
    "UNAUTHENTICATED": ResponseCode.NO_PERMISSION,
    "PERMISSION_DENIED": ResponseCode.NO_PERMISSION,
    "RESOURCE_EXHAUSTED": ResponseCode.SYSTEM_BUSY,
    "UNAVAILABLE": ResponseCode.SERVICE_NOT_AVAILABLE,
    "UNIMPLEMENTED": ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
# Texts that gRPC clients know begin with RocketMQ's code and a description in further lines.
_PREFIX = re.compile(r"CODE: \d+ +DESC: ")


class AlreadyThere(RemotingRefusal):
    """The call would make a thing that exists; this broker may not see it yet."""


class OperatorFace:
    """`Methods` that keeps the handlers of operators' services, and calls them."""

    def __init__(self) -> None:
        self._unary: dict[str, UnaryHandler] = {}

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`."""
        self._unary[path] = handler

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """Keep nothing: no request of this protocol is a stream."""

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Keep nothing, likewise."""

    async def call(
        self,
        rpc: str,
        request: Message,
        response_type: type[Response],
        caller: CallInfo,
        *,
        missing: ResponseCode = ResponseCode.SYSTEM_ERROR,
    ) -> Response:
        """Make a call of `strata.admin.v1.AdminService`.

        Args:
            rpc: name of the call.
            request: of the call.
            response_type: of its response.
            caller: who calls.
            missing: code for a thing that does not exist.

        Raises:
            RemotingRefusal: the call was refused; `AlreadyThere` if that is the reason.
        """
        handler = self._unary[f"/{admin_rpc.SERVICE}/{rpc}"]
        try:
            return response_type.FromString(await handler(request.SerializeToString(), caller))
        except CallError as failure:
            codes = {**_CODES, "NOT_FOUND": missing}
            code = codes.get(failure.status, ResponseCode.SYSTEM_ERROR)
            kind = AlreadyThere if failure.status == "ALREADY_EXISTS" else RemotingRefusal
            raise kind(code, _PREFIX.sub("", failure.reason)) from failure

    async def call_rocketmq(
        self, rpc: str, request: Message, response_type: type[Response], caller: CallInfo
    ) -> Response:
        """Make a call of `apache.rocketmq.v2.Admin`.

        Raises:
            RemotingRefusal: the call itself failed.
            RequestError: its status says that it was refused.
        """
        handler = self._unary[f"/{rocketmq_rpc.SERVICE}/{rpc}"]
        try:
            response = response_type.FromString(await handler(request.SerializeToString(), caller))
        except CallError as failure:
            code = _CODES.get(failure.status, ResponseCode.SYSTEM_ERROR)
            raise RemotingRefusal(code, failure.reason) from failure
        if "status" in response.DESCRIPTOR.fields_by_name:
            status = response.status  # type: ignore[attr-defined]
            if status.code != Code.OK:
                raise RequestError(_code_of(status.code), status.message)
        return response

    async def consumer_group(
        self, name: str, caller: CallInfo
    ) -> admin_pb2.GetConsumerGroupResponse:
        """Return a consumer group with its progress and its members.

        Raises:
            RemotingRefusal: SUBSCRIPTION_GROUP_NOT_EXIST, or the call was refused.
        """
        return await self.call(
            "GetConsumerGroup",
            admin_pb2.GetConsumerGroupRequest(name=name),
            admin_pb2.GetConsumerGroupResponse,
            caller,
            missing=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )

    async def topic(self, name: str, caller: CallInfo) -> admin_pb2.GetTopicResponse:
        """Return a topic and its queues.

        Raises:
            RemotingRefusal: TOPIC_NOT_EXIST, or the call was refused.
        """
        return await self.call(
            "GetTopic",
            admin_pb2.GetTopicRequest(name=name),
            admin_pb2.GetTopicResponse,
            caller,
            missing=ResponseCode.TOPIC_NOT_EXIST,
        )


def _code_of(number: int) -> Code:
    return Code(number) if number in _KNOWN else Code.INTERNAL_SERVER_ERROR


_KNOWN = frozenset(map(int, Code))
