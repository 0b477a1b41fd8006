"""From refusals of the broker to answers of the remoting protocol.

The texts are those that a RocketMQ broker or nameserver gives where clients or people look for
them; clients put code and text together themselves.
"""

from __future__ import annotations

import json
import re

from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RemotingError, ResponseCode

VERSION = 477
"""Version number that answers carry: that of RocketMQ 5.3, which clients of every version take."""

_CODES = {
    Code.BAD_REQUEST: ResponseCode.MESSAGE_ILLEGAL,
    Code.CONSUMER_GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Code.HA_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.ILLEGAL_CONSUMER_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.ILLEGAL_DELIVERY_TIME: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_FILTER_EXPRESSION: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Code.ILLEGAL_MESSAGE_GROUP: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_ID: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_KEY: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_PROPERTY_KEY: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_TAG: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_OFFSET: ResponseCode.PULL_OFFSET_MOVED,
    # The handle of a delayed message that was recalled, delivered or forged.
    Code.INVALID_RECEIPT_HANDLE: ResponseCode.ILLEGAL_OPERATION,
    # The outcome is unknown: a producer may send the message again.
    Code.MASTER_PERSISTENCE_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.MESSAGE_BODY_EMPTY: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_BODY_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_CORRUPTED: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: ResponseCode.MESSAGE_ILLEGAL,
    Code.NOT_IMPLEMENTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.OFFSET_NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Code.OK: ResponseCode.SUCCESS,
    Code.PAYLOAD_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.PROXY_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.SLAVE_PERSISTENCE_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.TOO_MANY_REQUESTS: ResponseCode.SYSTEM_BUSY,
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Code.UNAUTHORIZED: ResponseCode.NO_PERMISSION,
    Code.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
# Clients put this in front of a text by themselves.
_PREFIX = re.compile(r"CODE: \d+ +DESC: ")


class RemotingRefusal(Exception):
    """A request that is refused with a code of the remoting protocol.

    Attributes:
        code: of the answer.
        text: for the client.
    """

    def __init__(self, code: ResponseCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


def succeeded(request: RemotingCommand, **fields: object) -> RemotingCommand:
    """Return the answer of success, with fields that have values."""
    shown = {name: str(value) for name, value in fields.items() if value is not None}
    return request.answered(ResponseCode.SUCCESS, fields=shown, version=VERSION)


def with_json(request: RemotingCommand, value: object) -> RemotingCommand:
    """Return the answer of success with a body in JSON."""
    return with_body(request, json_body(value))


def with_body(request: RemotingCommand, body: bytes) -> RemotingCommand:
    """Do the same with a body that was made before, by `json_body`."""
    return request.answered(ResponseCode.SUCCESS, body=body, version=VERSION)


def json_body(value: object) -> bytes:
    """Return a value as the body of an answer."""
    return json.dumps(value, separators=(",", ":")).encode()


def refused(
    request: RemotingCommand, failure: RequestError | RemotingRefusal | RemotingError
) -> RemotingCommand:
    """Return the answer that tells of a refusal."""
    if isinstance(failure, RemotingRefusal):
        return request.answered(failure.code, failure.text, version=VERSION)
    if isinstance(failure, RemotingError):
        # RocketMQ answers a header that it cannot read so.
        return request.answered(ResponseCode.SYSTEM_ERROR, str(failure), version=VERSION)
    return request.answered(code_of(failure.code), text_of(failure), version=VERSION)


def code_of(code: Code) -> ResponseCode:
    """Return the remoting code for a code of the broker."""
    return _CODES.get(code, ResponseCode.SYSTEM_ERROR)


def text_of(failure: RequestError) -> str:
    """Return the text of a refusal as clients of this protocol expect it."""
    return _PREFIX.sub("", failure.text)
