"""END_TRANSACTION: a remoting producer's decision on a transactional message.

The transaction id of an answer to a send is that of gRPC clients, and a producer sends it back. So
it says where the message is, at any broker. A producer without a decision changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.answers import succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.sends.transactions import invalid_transaction_id, read_transaction_id
from strata_remoting import RemotingCommand, RemotingError, RequestCode

_RESOLUTIONS = {
    0: definition_pb2.TRANSACTION_RESOLUTION_UNSPECIFIED,
    8: definition_pb2.COMMIT,
    12: definition_pb2.ROLLBACK,
}


class RemotingTransactions:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows topics.
        handles: reads transaction ids.
    """

    def __init__(self, face: MessagingFace, view: MetadataView, *, handles: HandleSigner) -> None:
        self._face = face
        self._view = view
        self._handles = handles

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.END_TRANSACTION: self.end}

    async def end(self, exchange: Exchange) -> RemotingCommand:
        """Commit a message or roll it back.

        Raises:
            RemotingError: the decision is none.
            RequestError: INVALID_TRANSACTION_ID; storage did not answer.
        """
        request = exchange.request
        decision = request.number("commitOrRollback")
        resolution = _RESOLUTIONS.get(decision)
        if resolution is None:
            raise RemotingError(f"commitOrRollback is {decision}; 0, 8 and 12 are known")
        transaction_id = request.text("transactionId", "")
        handle = read_transaction_id(transaction_id, self._handles)
        topic = self._view.topic_by_id(handle.topic_id)
        if topic is None:
            raise invalid_transaction_id("its topic is gone")
        is_check = request.truth("fromTransactionCheck", default=False)
        source = definition_pb2.SOURCE_SERVER_CHECK if is_check else definition_pb2.SOURCE_CLIENT
        end = service_pb2.EndTransactionRequest(
            topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
            message_id=handle.message_id,
            transaction_id=transaction_id,
            resolution=resolution,
            source=source,
        )
        await self._face.call(
            "EndTransaction", end, service_pb2.EndTransactionResponse, exchange.caller()
        )
        return succeeded(request)
