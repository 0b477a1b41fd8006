"""From the request of a send to its messages: inflates its body and takes a batch apart."""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting import property_names as names
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.incoming import new_message
from strata_broker.remoting.inflating import BodyInflater
from strata_broker.remoting.inflation import is_compressed
from strata_broker.remoting.send_headers import SendHeader
from strata_mq.requests import Code, RequestError
from strata_remoting import BatchedMessage, decode_batch
from strata_runtime.clock import Clock


class IncomingMessages:
    """See the module docstring.

    Args:
        inflater: of compressed bodies.
        clock: wall time, for delays.
        max_messages: of a batch.
        cluster_name: in messages whose producer waits for a reply: it names the topic of replies.
    """

    def __init__(
        self, inflater: BodyInflater, clock: Clock, *, max_messages: int, cluster_name: str
    ) -> None:
        self._inflater = inflater
        self._clock = clock
        self._max_messages = max_messages
        self._cluster_name = cluster_name

    async def of(
        self, exchange: Exchange, header: SendHeader, topic: TopicRow
    ) -> Sequence[definition_pb2.Message]:
        """Return the messages of a send.

        Raises:
            RemotingError: the batch cannot be read.
            RemotingRefusal: a property is not allowed, or the body cannot be inflated.
            RequestError: MESSAGE_BODY_TOO_LARGE; MESSAGE_BODY_EMPTY: the batch has no messages.
        """
        client, body = exchange.client, exchange.request.body
        if is_compressed(header.system_flag):
            body = await self._inflater.inflate(body, header.system_flag, client.client_id)
        if header.is_batch:
            batch: Sequence[BatchedMessage] = decode_batch(body, self._max_messages)
            if not batch:
                raise RequestError(Code.MESSAGE_BODY_EMPTY, "a batch has no messages")
        else:
            batch = [BatchedMessage(body, header.properties, header.flag)]
        now_ms = self._clock.wall_ms()
        messages = [
            new_message(header._replace(flag=one.flag), one.body, one.properties, topic, now_ms)
            for one in batch
        ]
        for message in messages:
            message.system_properties.born_host = client.peer
            if names.stored_name(names.REPLY_TO) in message.user_properties:
                message.user_properties[names.stored_name(names.CLUSTER)] = self._cluster_name
        return messages
