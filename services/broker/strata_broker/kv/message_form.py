"""The message form of RIP-22: a send whose properties say that it is a write to a table.

User property `kv_opType` is PUT, PUT_IF_ABSENT or DELETE. User property `key` is the key (text, or
`base64:` and the key in base64). The topic names the table, and the body is the value. The answer
is that of a send; its offset is the revision. Values cannot be read this way: a send's answer has
no room for one.
"""

from __future__ import annotations

import base64

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.kv.v1 import kv_pb2
from strata_broker.access.principals import Principal
from strata_broker.base import errors
from strata_broker.base.failures import unexpected
from strata_broker.base.shares import CallShares, all_owners_of
from strata_broker.base.table_config import KvSection
from strata_broker.kv.tables import Tables
from strata_broker.kv.writes import Writes
from strata_broker.metadata.requests import Caller, caller_of, time_for, use_of
from strata_broker.sends.outgoing import parse_messages
from strata_broker.servicers.plugins import PluginParts
from strata_edge.ports import HotCall
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import Code, RequestError

OPERATION_PROPERTY = "kv_opType"
KEY_PROPERTY = "key"
_MARK = OPERATION_PROPERTY.encode()
_BASE64 = "base64:"


class MessageForm:
    """See the module docstring.

    Args:
        parts: of the broker.
        tables: where tables are.
        writes: carries writes out.
        shares: of all calls for tables.
        config: times.
    """

    def __init__(
        self,
        parts: PluginParts,
        tables: Tables,
        writes: Writes,
        *,
        shares: CallShares,
        config: KvSection,
    ) -> None:
        self._shares = shares
        self._calls = parts.calls
        self._tables = tables
        self._writes = writes
        self._config = config

    def takes_send(self, call: HotCall, principal: Principal) -> bool:
        """Take a send with the property; every other send costs one search for its name."""
        if _MARK not in call.request:
            return False
        try:
            request = parse_messages(call.request)
        except DecodeError:
            return False
        if not any(OPERATION_PROPERTY in message.user_properties for message in request.messages):
            # The name is in a body.
            return False
        self._calls.requests.spawn(
            "kv-message",
            self._answer(call, request, principal),
            lambda _: call.complete((_refused(unexpected()).SerializeToString(),)),
        )
        return True

    async def _answer(
        self, call: HotCall, request: service_pb2.SendMessageRequest, principal: Principal
    ) -> None:
        most_s = self._calls.config.calls.max_timeout_ms / 1000
        timeout_s = time_for(call.time_left_s(), self._config.timeout_ms / 1000, most_s)
        deadline_s = self._calls.clock.monotonic_s() + timeout_s
        response = service_pb2.SendMessageResponse()
        try:
            caller = caller_of(call.metadata)._replace(user=principal.user, peer=call.peer)
            for message in request.messages:
                name = caller.name_of(message.topic)
                principal.require(ResourceKind.TABLE, name, Action.UPDATE)
            owners = all_owners_of(caller.client_id, call.peer)
            with self._shares.holding(owners, len(call.request)):
                for message in request.messages:
                    entry = await self._write(caller, message, deadline_s)
                    response.entries.append(entry)
            codes = [Code(entry.status.code) for entry in response.entries]
            response.status.code = definition_pb2.Code.ValueType(int(errors.fold(codes)))
        except RequestError as failure:
            self._calls.access.tell_if_refused(failure, call, call.method)
            response = _refused(failure)
        call.complete((response.SerializeToString(),))

    async def _write(
        self, caller: Caller, message: definition_pb2.Message, deadline_s: float
    ) -> service_pb2.SendResultEntry:
        message_id = message.system_properties.message_id
        try:
            operation = _operation(message)
            namespace, name = caller.name_of(message.topic)
            table = kv_pb2.TableName(namespace=namespace, name=name)
            topic = await self._tables.for_write(table, use_of(caller, "SendMessage"))
            result = await self._writes.write(topic, (operation,), deadline_s)
        except RequestError as failure:
            return service_pb2.SendResultEntry(
                status=errors.status_of(failure), message_id=message_id
            )
        if not result.applied:
            there = RequestError(Code.PRECONDITION_FAILED, "the key exists already")
            return service_pb2.SendResultEntry(
                status=errors.status_of(there), message_id=message_id
            )
        return service_pb2.SendResultEntry(
            status=errors.ok_status(), message_id=message_id, offset=result.revision
        )


def _refused(failure: RequestError) -> service_pb2.SendMessageResponse:
    return service_pb2.SendMessageResponse(status=errors.status_of(failure))


def _operation(message: definition_pb2.Message) -> kv_pb2.Operation:
    """Return the operation of a message.

    Raises:
        RequestError: BAD_REQUEST, NOT_IMPLEMENTED.
    """
    properties = message.user_properties
    operation = kv_pb2.Operation(key=_key(properties[KEY_PROPERTY]))
    match properties[OPERATION_PROPERTY].upper():
        case "PUT":
            operation.put = message.body
        case "PUT_IF_ABSENT":
            operation.put = message.body
            operation.condition.version = 0
        case "DELETE":
            operation.delete = True
        case other:
            raise RequestError(
                Code.NOT_IMPLEMENTED,
                f"kv_opType is PUT, PUT_IF_ABSENT or DELETE, not {other!r}: "
                "read through strata.kv.v1",
            )
    return operation


def _key(text: str) -> bytes:
    if not text:
        raise RequestError(Code.BAD_REQUEST, "no key: set the property key")
    if not text.startswith(_BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except ValueError as error:
        # Not only `binascii.Error`: text that is no ASCII is a plain ValueError.
        raise RequestError(Code.BAD_REQUEST, f"key is not base64: {error}") from error
