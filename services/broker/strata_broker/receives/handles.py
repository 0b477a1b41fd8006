"""From a client's receipt handle to the lease it names, checked against topic and group."""

from __future__ import annotations

from collections.abc import Sequence

from strata.storage.v1 import storage_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_mq.requests import Code, ReceiptHandle, RequestError


class HandleReader:
    """Reads handles from any broker (rule: brokers hold no state that matters)."""

    def __init__(self, view: MetadataView, signer: HandleSigner) -> None:
        self._view = view
        self._signer = signer

    def read(self, text: str, group: Name, topic: TopicRow) -> ReceiptHandle:
        """Return what a handle says.

        Raises:
            RequestError: INVALID_RECEIPT_HANDLE: damaged, forged, of another topic or consumer
                group, or of a raft group that does not exist.
        """
        (handle,) = self.read_all((text,), group, topic)
        if handle is None:
            raise RequestError(Code.INVALID_RECEIPT_HANDLE)
        return handle

    def read_all(
        self, texts: Sequence[str], group: Name, topic: TopicRow
    ) -> list[ReceiptHandle | None]:
        """Return what handles say; None where `read` raises."""
        row = self._view.consumer_group(*group)
        if row is None:
            return [None] * len(texts)
        handles = self._signer.read_receipts(texts)
        place = row.consumer_group_id, topic.topic_id
        exists: dict[int, bool] = {}
        for at, handle in enumerate(handles):
            if handle is None:
                continue
            raft_group = handle.raft_group
            if raft_group not in exists:
                exists[raft_group] = self._view.raft_group(raft_group) is not None
            if handle[1:3] != place or not exists[raft_group]:
                handles[at] = None
        return handles


def by_raft_group(
    handles: Sequence[ReceiptHandle | None],
) -> tuple[dict[int, tuple[list[int], list[ReceiptHandle]]], list[int]]:
    """Return (numbers and handles by raft group, the numbers where there is none)."""
    good: dict[int, tuple[list[int], list[ReceiptHandle]]] = {}
    bad = []
    for number, handle in enumerate(handles):
        if handle is None:
            bad.append(number)
            continue
        found = good.get(handle.raft_group)
        if found is None:
            found = good[handle.raft_group] = [], []
        found[0].append(number)
        found[1].append(handle)
    return good, bad


def lease_ref(handle: ReceiptHandle) -> storage_pb2.LeaseRef:
    """Return the lease that a handle names, as storage nodes are asked for it."""
    return storage_pb2.LeaseRef(
        consumer_group_id=handle.consumer_group_id,
        topic_id=handle.topic_id,
        queue=handle.queue,
        offset=handle.offset,
        lease_number=handle.lease_number,
        generation=handle.generation,
        visible_at_ms=handle.visible_at_ms,
    )
