"""RecallMessage: takes back a message that no consumer got.

A delayed message is named by the recall handle of its send result. Any other message is named by
its message id: a handle would make every send dearer, and recalls are rare. Storage decides
immediately and only once (rule 1): a delivered message cannot be recalled.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.clients.provision import Provisioner
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.layout import pack_message_id, unpack_message_id
from strata_mq.requests import (
    ACCEPTED_TYPES,
    BadHandleError,
    Code,
    HandleForm,
    MessageType,
    RequestError,
    TopicType,
    check_topic_accepts,
)

_TOO_LATE = "it was delivered or recalled before, or is unknown"


class Recaller:
    """See the module docstring."""

    def __init__(
        self,
        provisioner: Provisioner,
        storage: StorageClient,
        *,
        runtime: CallRuntime,
    ) -> None:
        self._handles = runtime.handles
        self._view = provisioner.view
        self._provisioner = provisioner
        self._storage = storage
        self._clock = runtime.clock
        self._recalled = runtime.metrics.counter("strata_broker_recalls_total")

    async def recall(
        self, caller: Caller, request: service_pb2.RecallMessageRequest, timeout_s: float
    ) -> str:
        """Recall a message; returns its id.

        Raises:
            RequestError: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: no
                handle, and the topic has no delay messages; INVALID_RECEIPT_HANDLE: it was
                delivered or recalled before, or there is no such message; no answer in time.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        topic = self._provisioner.topic(*caller.name_of(request.topic))
        try:
            message_id = await self._recall(topic, request.recall_handle, deadline_s)
        except RequestError as refused:
            self._recalled.add(1, {"result": refused.code.name.lower()})
            raise
        self._recalled.add(1, {"result": "ok"})
        return message_id

    async def _recall(self, topic: TopicRow, text: str, deadline_s: float) -> str:
        try:
            handle = self._handles.read_pending(text)
        except BadHandleError:
            if unpack_message_id(pack_message_id(text)) is None:
                check_topic_accepts(TopicType(topic.topic_type), MessageType.DELAY)
                raise _invalid("not a recall handle") from None
            await self._recall_by_id(topic, text, deadline_s)
            return text
        if handle.form is HandleForm.MESSAGE_ID or not handle.message_id:
            raise _invalid("not a recall handle")
        if handle.topic_id != topic.topic_id:
            raise _invalid("it belongs to another topic")
        if self._view.raft_group(handle.raft_group) is None:
            # No node would ever answer.
            raise _invalid("it names no known raft group")
        recall = _request(handle.raft_group, topic, handle.message_id)
        if handle.form is HandleForm.PENDING:
            recall.pending.index, recall.pending.ordinal = handle.number, handle.part
        else:
            recall.position.queue, recall.position.offset = handle.part, handle.number
        await self._call(recall, deadline_s)
        return handle.message_id

    async def _recall_by_id(self, topic: TopicRow, message_id: str, deadline_s: float) -> None:
        """Recall the newest message with an id, asking one raft group of the topic at a time."""
        for raft_group in self._raft_groups(topic):
            try:
                await self._call(_request(raft_group, topic, message_id), deadline_s)
            except RequestError as refused:
                if refused.code is Code.INVALID_RECEIPT_HANDLE:
                    continue
                raise
            return
        raise _invalid(_TOO_LATE)

    def _raft_groups(self, topic: TopicRow) -> Sequence[int]:
        """Return the raft groups that may have a message of a topic, most likely ones first.

        A message that waits is no part of a queue: slots and queues may have left its raft group
        since, however long ago.
        """
        may_wait = MessageType.DELAY in ACCEPTED_TYPES[TopicType(topic.topic_type)]
        # Its messages may have come when it had another type.
        if may_wait or topic.changed_ms:
            return self._view.holders_first(topic)
        return list(self._view.holders(topic))

    async def _call(self, request: storage_pb2.RecallRequest, deadline_s: float) -> None:
        left_s = deadline_s - self._clock.monotonic_s()
        try:
            await self._storage.call(
                request.raft_group,
                "Recall",
                request,
                storage_pb2.RecallResponse,
                timeout_s=left_s,
            )
        except RequestError as refused:
            if refused.code is Code.INVALID_RECEIPT_HANDLE:
                raise _invalid(_TOO_LATE) from refused
            raise


def _request(raft_group: int, topic: TopicRow, message_id: str) -> storage_pb2.RecallRequest:
    return storage_pb2.RecallRequest(
        raft_group=raft_group, topic_id=topic.topic_id, message_id=message_id
    )


def _invalid(reason: str) -> RequestError:
    """Return the error; its text has the code's name, because clients' tests look for it."""
    code = Code.INVALID_RECEIPT_HANDLE
    return RequestError(code, f"{code.name}: {reason}")
