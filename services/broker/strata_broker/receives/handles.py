"""From a client's receipt handle to the lease it names, checked against topic and group."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_mq.requests import Code, RequestError, decode_handle


class HandleReader:
    """Reads handles from any broker (rule: brokers hold no state that matters)."""

    def __init__(self, view: MetadataView) -> None:
        self._view = view

    def lease(self, text: str, group: Name, topic: TopicRow) -> tuple[int, storage_pb2.LeaseRef]:
        """Return (raft group, lease).

        Raises:
            RequestError: INVALID_RECEIPT_HANDLE: damaged, of another topic or consumer group, or of
                a raft group that does not exist (handles are not signed).
        """
        handle = decode_handle(text)
        row = self._view.consumer_group(*group)
        if (
            row is None
            or row.consumer_group_id != handle.consumer_group_id
            or topic.topic_id != handle.topic_id
            or self._view.raft_group(handle.raft_group) is None
        ):
            raise RequestError(Code.INVALID_RECEIPT_HANDLE)
        return handle.raft_group, storage_pb2.LeaseRef(
            consumer_group_id=handle.consumer_group_id,
            topic_id=handle.topic_id,
            queue=handle.queue,
            offset=handle.offset,
            lease_number=handle.lease_number,
            generation=handle.generation,
            visible_at_ms=handle.visible_at_ms,
        )
