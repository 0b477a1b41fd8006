"""From a client's receipt handle to the lease it names, checked against topic and group."""

from __future__ import annotations

from collections.abc import Sequence

from strata.storage.v1 import storage_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.base.wire import length_delimited
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_edge.passes import ReceiptPass
from strata_mq.requests import Code, ReceiptHandle, RequestError

NamedLease = tuple[int, bytes]
"""The raft group of a lease, and the lease as `lease_field` serialises it."""

# `GroupLeases.leases`.
_LEASES_FIELD = 2


class HandleReader:
    """Reads handles from any broker (rule: brokers hold no state that matters).

    Args:
        view: knows consumer groups and raft groups.
        signer: knows the keys that handles are signed with.
        receipt_pass: reads usual handles; None: Python does.
    """

    def __init__(
        self, view: MetadataView, signer: HandleSigner, receipt_pass: ReceiptPass | None = None
    ) -> None:
        self._view = view
        self._signer = signer
        self._pass = receipt_pass

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

    def leases(self, texts: list[str], group: Name, topic: TopicRow) -> Sequence[NamedLease | None]:
        """Return the leases that handles name; None where `read` raises."""
        named = self._passed(texts, group, topic)
        if named is not None:
            return named
        return [
            None if handle is None else (handle.raft_group, lease_field(handle))
            for handle in self.read_all(texts, group, topic)
        ]

    def _passed(
        self, texts: list[str], group: Name, topic: TopicRow
    ) -> Sequence[NamedLease] | None:
        """Return the leases if the native pass reads all handles and each of them is good."""
        row = self._view.consumer_group(*group)
        if self._pass is None or row is None:
            return None
        secrets = self._signer.keys().secrets
        named = self._pass.read(texts, secrets, row.consumer_group_id, topic.topic_id)
        if named is None:
            return None
        raft_groups = {raft_group for raft_group, _ in named}
        known = all(self._view.raft_group(one) is not None for one in raft_groups)
        return named if known else None


def by_raft_group(
    named: Sequence[NamedLease | None],
) -> tuple[dict[int, tuple[list[int], list[bytes]]], list[int]]:
    """Return (numbers and leases by raft group, the numbers where there is none)."""
    good: dict[int, tuple[list[int], list[bytes]]] = {}
    bad = []
    for number, one in enumerate(named):
        if one is None:
            bad.append(number)
            continue
        raft_group, lease = one
        found = good.get(raft_group)
        if found is None:
            found = good[raft_group] = [], []
        found[0].append(number)
        found[1].append(lease)
    return good, bad


def lease_field(handle: ReceiptHandle) -> bytes:
    """Return the lease that a handle names as a field of GroupLeases."""
    return length_delimited(_LEASES_FIELD, lease_ref(handle).SerializeToString())


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
