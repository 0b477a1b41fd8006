"""From a client's receipt handle to the lease it names, checked against topic and group."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_mq.requests import Code, RequestError


class HandleReader:
    """Reads handles from any broker (rule: brokers hold no state that matters)."""

    def __init__(self, view: MetadataView, signer: HandleSigner) -> None:
        self._view = view
        self._signer = signer

    def lease(self, text: str, group: Name, topic: TopicRow) -> tuple[int, storage_pb2.LeaseRef]:
        """Return (raft group, lease).

        Raises:
            RequestError: INVALID_RECEIPT_HANDLE: damaged, forged, of another topic or consumer
                group, or of a raft group that does not exist.
        """
        handle = self._signer.read_receipt(text)
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
