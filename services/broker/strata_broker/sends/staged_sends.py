"""Messages that the broker stages by itself: redriven letters, and messages given up.

They were checked when they were stored first, and are not checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.failures import unexpected
from strata_broker.base.shares import Owner
from strata_broker.base.wire import stored_message
from strata_broker.metadata.budget import SendBudget
from strata_broker.metadata.requests import milliseconds
from strata_mq.layout import (
    Checksum,
    OutgoingMessage,
    PartKey,
    PrioritizedMessage,
    key_hash,
    pack_message_id,
    text_hash,
)
from strata_mq.requests import Code, RequestError
from strata_mq.traces import sender_fragment


class StagedSends:
    """Waits for messages that were staged; see `append.Waiter`.

    Their charge is given back when they are settled, not when their sender continues: it may have
    been cancelled by then.
    """

    def __init__(self, count: int, budget: SendBudget) -> None:
        self._left = count
        self._budget = budget
        # index -> namespace, raft group, bytes, owners of the shares
        self._charged: dict[int, tuple[str, int, int, Sequence[Owner]]] = {}
        self.offsets: dict[int, int] = {}
        self.failures: dict[int, RequestError] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def charge(
        self, index: int, charged: tuple[str, int, int], sharers: Sequence[Owner] = ()
    ) -> None:
        """Charge a message with namespace, raft group and bytes, also to the shares of its owners.

        Raises:
            RequestError: TOO_MANY_REQUESTS; nothing is charged.
        """
        if not self._budget.try_take(*charged, sharers):
            raise errors.too_many_requests()
        self._charged[index] = (*charged, sharers)

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """See `append.Waiter`."""
        self.offsets.update(zip(indexes, offsets, strict=True))
        self._settled(indexes)

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """See `append.Waiter`; these messages never wait."""
        self._settled(indexes)

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """See `append.Waiter`."""
        self.failures.update(dict.fromkeys(indexes, failure.without_stack()))
        self._settled(indexes)

    def failed(self) -> None:
        """See `append.Waiter`."""
        indexes = tuple(self._charged)
        self._left = len(indexes)
        self.refused(indexes, unexpected())

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """See `append.Waiter`; the next try finds where the queue is now."""
        self.refused(indexes, RequestError(Code.PROXY_TIMEOUT, "the queue is being moved"))

    def _settled(self, indexes: Sequence[int]) -> None:
        self._left -= len(indexes)
        for index in indexes:
            charged = self._charged.pop(index, None)
            if charged is not None:
                self._budget.give_back(*charged)
        if not self._left and not self.done.done():
            self.done.set_result(None)


def outgoing_again(
    message: definition_pb2.Message, client_id: str, checksum: Checksum
) -> OutgoingMessage:
    """Return the stored form of a message that was stored before; the message is used up.

    Args:
        message: without the fields of one delivery.
        client_id: who sends it now.
        checksum: CRC32C.
    """
    properties = message.system_properties
    own_properties = properties.SerializeToString()
    message_id, tag, keys = properties.message_id, properties.tag, list(properties.keys)
    group_hash = text_hash(properties.message_group) if properties.message_group else 0
    message_type, born_ms = properties.message_type, milliseconds(properties.born_timestamp)
    priority = properties.priority
    message.ClearField("system_properties")
    stored = stored_message(own_properties, sender_fragment(client_id), message.SerializeToString())
    outgoing = OutgoingMessage(
        stored,
        checksum(stored),
        text_hash(tag) if tag else 0,
        group_hash,
        pack_message_id(message_id),
        message_type,
        max(born_ms, 0),
        [key_hash(key) for key in keys],
    )
    return PrioritizedMessage.of(outgoing, priority)
