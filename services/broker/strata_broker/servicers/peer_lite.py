"""How a broker answers another broker that tells of a subscription of lite topics."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from strata.broker.v1 import peer_pb2
from strata_broker.base import errors
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_mq.requests import Code, RequestError


async def take_lite(
    lite: LiteSubscriptions, request: peer_pb2.SyncLiteRequest
) -> peer_pb2.SyncLiteResponse:
    """Take a subscription in; the answer says why it was refused."""
    try:
        await lite.told(request)
    except DecodeError as error:
        status = errors.status_of(RequestError(Code.BAD_REQUEST, str(error)))
    except RequestError as bad:
        status = errors.status_of(bad)
    else:
        status = errors.ok_status()
    return peer_pb2.SyncLiteResponse(status=status)
