"""RECALL_MESSAGE: a producer takes a delayed message back before it is due."""

from __future__ import annotations

from collections.abc import Mapping

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_remoting import (
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    decode_recall_handle,
)


class RemotingRecalls:
    """See the module docstring.

    Args:
        face: the broker's handlers.
    """

    def __init__(self, face: MessagingFace) -> None:
        self._face = face

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, exchange: Exchange) -> RemotingCommand:
        """Recall a message, and answer with its id.

        Raises:
            RemotingRefusal: ILLEGAL_OPERATION, with RocketMQ's text: the handle is none, or is of
                another topic.
            RequestError: the message is due already, or storage refused.
        """
        request = exchange.request
        topic = request.text("topic")
        try:
            handle = decode_recall_handle(request.text("recallHandle"))
        except RemotingError as bad:
            raise RemotingRefusal(ResponseCode.ILLEGAL_OPERATION, str(bad)) from bad
        if handle.topic != topic:
            raise RemotingRefusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        recall = service_pb2.RecallMessageRequest(
            topic=definition_pb2.Resource(name=topic), recall_handle=handle.handle
        )
        response = await self._face.call(
            "RecallMessage", recall, service_pb2.RecallMessageResponse, exchange.caller()
        )
        return succeeded(request, msgId=response.message_id)
