"""Ends transactions: finds the half message of a transaction id that any broker gave.

A transaction id is a `PendingHandle`. Every fault of an id is INVALID_TRANSACTION_ID: it is
damaged, belongs to another topic, or its transaction ended the other way. Ending a transaction
again the same way is fine, so an unanswered call is simply repeated.
"""

from __future__ import annotations

from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.requests import Caller
from strata_broker.sends.gathered_ends import EndedAt, GatheredEnds, alone
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import (
    BadHandleError,
    Code,
    HandleForm,
    PendingHandle,
    RequestError,
    check_topic,
)
from strata_runtime.metrics import Metrics

_ENDS = {
    definition_pb2.COMMIT: storage_pb2.TRANSACTION_END_COMMIT,
    definition_pb2.ROLLBACK: storage_pb2.TRANSACTION_END_ROLLBACK,
}
_END_NAMES = {
    storage_pb2.TRANSACTION_END_COMMIT: "commit",
    storage_pb2.TRANSACTION_END_ROLLBACK: "rollback",
    storage_pb2.TRANSACTION_END_GIVE_UP: "give up",
}


class EndedHalf(NamedTuple):
    """A half message that a producer ends.

    Attributes:
        raft_group: that has it.
        topic: its topic.
        half: which one, and how it ends.
    """

    raft_group: int
    topic: TopicRow
    half: storage_pb2.HalfEnd


class Transactions:
    """See the module docstring.

    Args:
        view: topics and raft groups.
        storage: is asked to give a message up.
        metrics: what is counted.
        ends: commits and rolls back.
        handles: see below.
        timeout_s: time of an end that names none.

    Attributes:
        handles: signs and reads transaction ids.
        ends: see above.
    """

    def __init__(
        self,
        view: MetadataView,
        storage: StorageClient,
        metrics: Metrics,
        *,
        ends: GatheredEnds,
        handles: HandleSigner,
        timeout_s: float,
    ) -> None:
        self.handles = handles
        self.ends = ends
        self._view = view
        self._storage = storage
        self._timeout_s = timeout_s
        ended = metrics.counter("strata_broker_transactions_ended_total")
        self._ended = {end: ended.bound({"end": name}) for end, name in _END_NAMES.items()}
        # RocketMQ's names; it has none for a transaction that is given up.
        self._rocketmq_ended = {
            storage_pb2.TRANSACTION_END_COMMIT: metrics.counter("rocketmq_commit_messages_total"),
            storage_pb2.TRANSACTION_END_ROLLBACK: metrics.counter(
                "rocketmq_rollback_messages_total"
            ),
        }

    async def end(
        self, caller: Caller, request: service_pb2.EndTransactionRequest, timeout_s: float
    ) -> None:
        """Serve a producer's EndTransaction; a producer without a decision changes nothing.

        Raises:
            RequestError: as `named`, or no answer in time.
        """
        named = self.named(caller, request)
        if named is None:
            return
        raft_group, topic, half = named
        try:
            await self.ends.end(raft_group, half, timeout_s)
        except RequestError as refused:
            raise not_ended(refused) from refused
        self.count(half.end, topic)

    def named(self, caller: Caller, request: service_pb2.EndTransactionRequest) -> EndedHalf | None:
        """Return which half message a producer ends, and how; None: it has not decided.

        Raises:
            RequestError: ILLEGAL_TOPIC, INVALID_TRANSACTION_ID.
        """
        topic_name = caller.name_of(request.topic)
        topic = self._view.topic(*topic_name)
        if topic is None:
            check_topic(topic_name[1])
        handle = read_transaction_id(request.transaction_id, self.handles)
        if topic is None or handle.topic_id != topic.topic_id:
            raise invalid_transaction_id("it belongs to another topic")
        if request.message_id and handle.message_id not in ("", request.message_id):
            raise invalid_transaction_id("it belongs to another message")
        end = _ENDS.get(request.resolution)
        if end is None:
            return None
        return EndedHalf(handle.raft_group, topic, self._half(handle, end))

    async def resolve(
        self,
        handle: PendingHandle,
        end: storage_pb2.TransactionEnd.ValueType,
        timeout_s: float | None = None,
        *,
        dead_letter_topic_id: int = 0,
    ) -> EndedAt:
        """End the transaction of a half message; return the place of a committed one.

        Args:
            handle: of the half message.
            end: decision.
            timeout_s: time for all tries; None: the configured time.
            dead_letter_topic_id: topic that gets the message when it is given up.

        Raises:
            RequestError: INVALID_TRANSACTION_ID, or no answer in time.
        """
        half = self._half(handle, end)
        if timeout_s is None:
            timeout_s = self._timeout_s
        try:
            if end == storage_pb2.TRANSACTION_END_GIVE_UP:
                place = await self._give_up(handle, half, dead_letter_topic_id, timeout_s)
            else:
                place = await self.ends.end(handle.raft_group, half, timeout_s)
        except RequestError as refused:
            raise not_ended(refused) from refused
        self.count(end, self._view.topic_by_id(handle.topic_id))
        return place

    def count(self, end: storage_pb2.TransactionEnd.ValueType, topic: TopicRow | None) -> None:
        """Count a transaction that ended; `topic` None: it is not known any more."""
        self._ended[end].add(1)
        if end in self._rocketmq_ended and topic is not None:
            labels = {"namespace": topic.namespace, "topic": topic.name}
            self._rocketmq_ended[end].add(1, labels)

    def _half(
        self, handle: PendingHandle, end: storage_pb2.TransactionEnd.ValueType
    ) -> storage_pb2.HalfEnd:
        """Return what storage is told.

        Raises:
            RequestError: INVALID_TRANSACTION_ID.
        """
        if handle.form is HandleForm.STORED:
            raise invalid_transaction_id("it is a recall handle")
        if self._view.raft_group(handle.raft_group) is None:
            # No node would ever answer.
            raise invalid_transaction_id("it names no known raft group")
        half = storage_pb2.HalfEnd(topic_id=handle.topic_id, end=end)
        if handle.form is HandleForm.PENDING:
            half.pending.index, half.pending.ordinal = handle.number, handle.part
        else:
            half.message_id = handle.message_id
        return half

    async def _give_up(
        self,
        handle: PendingHandle,
        half: storage_pb2.HalfEnd,
        dead_letter_topic_id: int,
        timeout_s: float,
    ) -> EndedAt:
        request = alone(handle.raft_group, half)
        request.dead_letter_topic_id = dead_letter_topic_id
        response = await self._storage.call(
            handle.raft_group,
            "EndTransaction",
            request,
            storage_pb2.EndTransactionResponse,
            timeout_s=timeout_s,
        )
        return EndedAt(response.queue, response.offset)


def not_ended(refused: RequestError) -> RequestError:
    """Return what a producer gets for a refusal of storage."""
    if refused.code is Code.INVALID_RECEIPT_HANDLE:
        return invalid_transaction_id("it is unknown, or ended the other way")
    return refused


def read_transaction_id(text: str, handles: HandleSigner) -> PendingHandle:
    """Parse a transaction id.

    Raises:
        RequestError: INVALID_TRANSACTION_ID.
    """
    if not text or text.isspace():
        raise RequestError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be blank")
    try:
        return handles.read_pending(text)
    except BadHandleError as bad:
        raise invalid_transaction_id("it is not from this cluster") from bad


def invalid_transaction_id(reason: str) -> RequestError:
    """Return the error; its text has the code's name, because clients' tests look for it."""
    code = Code.INVALID_TRANSACTION_ID
    return RequestError(code, f"{code.name}: {reason}")
