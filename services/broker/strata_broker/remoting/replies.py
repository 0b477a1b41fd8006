"""Replies of consumers: SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2.

A reply goes to the client that asked and is not stored. Its consumer is told whether the client has
taken it, with RocketMQ's code and texts. A body that the consumer compressed goes on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strata.broker.v1 import peer_pb2
from strata_broker.base.shares import CallShares, all_owners_of
from strata_broker.clients.replies import Replies
from strata_broker.remoting import property_names as names
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.send_headers import SendHeader, field_names, send_header
from strata_mq.access import Action
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, decode_properties
from strata_runtime.clock import Clock

_MOST_CLIENT_ID = 255


class RemotingReplies:
    """See the module docstring.

    Args:
        reply_topic: the only topic that replies may name.
        endpoint: returns HOST:PORT of this broker.
        clock: wall time.
        max_body_bytes: of a reply.
        shares: of replies that are under way.
    """

    def __init__(
        self,
        reply_topic: str,
        endpoint: Callable[[], str],
        clock: Clock,
        *,
        max_body_bytes: int,
        shares: CallShares,
    ) -> None:
        self._reply_topic = reply_topic
        self._endpoint = endpoint
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._shares = shares
        self._replies: Replies | None = None

    def passed_by(self, replies: Replies) -> None:
        """Pass replies on by this; must precede the first request."""
        self._replies = replies

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.send,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.send,
        }

    async def send(self, exchange: Exchange) -> RemotingCommand:
        """Give a reply to the client that asked.

        Raises:
            RemotingError: a field is missing, or is no number.
            RemotingRefusal: the reply names another topic or no client, or its client is gone or
                did not take it.
            RequestError: the caller may not reply; MESSAGE_BODY_TOO_LARGE; TOO_MANY_REQUESTS.
        """
        request = exchange.request
        header = send_header(request)
        if header.topic != self._reply_topic:
            raise RemotingRefusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a reply is sent to the topic {self._reply_topic}, not to {header.topic[:255]}",
            )
        exchange.require_topic(header.topic, Action.PUB)
        if len(request.body) > self._max_body_bytes:
            raise RequestError(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"message body cannot exceed the max {self._max_body_bytes}",
            )
        client_id = decode_properties(header.properties).get(names.REPLY_TO, "")
        if not 0 < len(client_id) <= _MOST_CLIENT_ID:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR,
                f"{names.REPLY_TO} is null, can not reply message"
                if not client_id
                else f"{names.REPLY_TO} has more than {_MOST_CLIENT_ID} characters",
            )
        owners = all_owners_of(exchange.client.client_id, exchange.client.peer)
        with self._shares.holding(owners):
            await self._push(client_id, header, exchange)
        return succeeded(request, msgId="0", queueId=header.queue_id, queueOffset=0)

    async def _push(self, client_id: str, header: SendHeader, exchange: Exchange) -> None:
        assert self._replies is not None, "nobody passes replies on"
        try:
            await self._replies.push(
                peer_pb2.PushReplyRequest(
                    client_id=client_id,
                    fields=self._fields(header, exchange),
                    body=exchange.request.body,
                )
            )
        except RequestError as bad:
            if bad.code is Code.TOO_MANY_REQUESTS:
                raise
            if bad.code is Code.NOT_FOUND:
                text = f"push reply message fail, channel of <{client_id}> not found."
            else:
                text = f"push reply message to {client_id} fail: {bad.text}"
            raise RemotingRefusal(ResponseCode.SYSTEM_ERROR, text) from bad

    def _fields(self, header: SendHeader, exchange: Exchange) -> dict[str, str]:
        """Return the header of what the client gets: that of the send, and where it came from."""
        request = exchange.request
        name = field_names(request)
        return {
            "bornHost": f"/{exchange.client.peer}",
            "bornTimestamp": str(header.born_ms),
            "defaultTopic": request.text(name("defaultTopic"), ""),
            "defaultTopicQueueNums": str(request.number(name("defaultTopicQueueNums"), 0)),
            "flag": str(header.flag),
            "producerGroup": header.producer_group,
            "properties": header.properties,
            "queueId": str(header.queue_id),
            "reconsumeTimes": str(header.reconsume_times),
            "storeHost": f"/{self._endpoint()}",
            "storeTimestamp": str(self._clock.wall_ms()),
            "sysFlag": str(header.system_flag),
            "topic": header.topic,
            "unitMode": "false",
        }
