"""Handles of receipts, transactions and recalls, signed with the keys of the cluster.

A new key signs once it is some time old: until then other brokers may not know it. It signs only
while every broker is of a version that reads signed handles.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_broker.base.access_config import AccessControlSection
from strata_broker.metadata.metadata import MetadataView
from strata_metadata.rows import ROW_FORMAT
from strata_mq.requests import (
    HandleKeys,
    PendingHandle,
    ReceiptHandle,
    decode_handles,
    decode_pending_handle,
    encode_handle,
    encode_handles,
    encode_pending_handle,
)
from strata_runtime.clock import Clock

# Consumer group, topic, queue, offset, visible at.
_LEASE_FIELDS = struct.Struct(">IIIQQ")
_FIRST_KEY_ID = 1
_NEVER_MS = 1 << 63
# Handles that are remembered, and as many again.
_GIVEN_MAX = 4_096


class HandleSigner:
    """See the module docstring. Used on the event loop only.

    Args:
        view: knows the cluster keys and the brokers.
        config: the section `[access_control]`.
        clock: wall time.
    """

    def __init__(self, view: MetadataView, config: AccessControlSection, clock: Clock) -> None:
        self._view = view
        self._config = config
        self._clock = clock
        self._made_of = (-1, -1)
        self._until_ms = 0
        self._unsigned_until_ms = 0
        self._keys = HandleKeys({})
        # Handles that this broker gave last, with the keys of now.
        self._given: dict[str, PendingHandle] = {}
        self._given_before: dict[str, PendingHandle] = {}

    def receipt(self, handle: ReceiptHandle) -> str:
        """Return the text of a receipt handle."""
        return encode_handle(handle, self.keys())

    def receipts(self, handles: Sequence[ReceiptHandle]) -> list[str]:
        """Return the texts of receipt handles."""
        return encode_handles(handles, self.keys())

    def read_receipts(self, texts: Sequence[str]) -> list[ReceiptHandle | None]:
        """Read receipt handles; None for one that is none, damaged or forged."""
        return decode_handles(texts, self.keys())

    def pending(self, handle: PendingHandle) -> str:
        """Return the text of a transaction id or a recall handle."""
        text = encode_pending_handle(handle, self.keys())
        if len(self._given) >= _GIVEN_MAX:
            self._given_before, self._given = self._given, {}
        self._given[text] = handle
        return text

    def read_pending(self, text: str) -> PendingHandle:
        """Read a transaction id or a recall handle.

        Raises:
            BadHandleError: it is none of this cluster.
        """
        keys = self.keys()
        # Most transactions are ended at once, many of them here.
        given = self._given.get(text) or self._given_before.get(text)
        return decode_pending_handle(text, keys) if given is None else given

    def lease_mark(self, handle: ReceiptHandle) -> int:
        """Return the number that stands for a lease beside its place and its end."""
        return self.keys().mark(_lease_fields(handle))

    def is_lease_mark(self, handle: ReceiptHandle, mark: int) -> bool:
        """Whether a broker gave this number for a lease with this place and this end."""
        return self.keys().is_mark(_lease_fields(handle), mark)

    def keys(self) -> HandleKeys:
        """Return the keys that are good now; whoever makes many handles asks once."""
        made_of = (self._view.access.version, self._view.placement_version)
        if made_of != self._made_of or self._clock.wall_ms() >= self._until_ms:
            self._made_of = made_of
            self._make(self._clock.wall_ms())
        return self._keys

    def _make(self, now_ms: int) -> None:
        self._given, self._given_before = {}, {}
        rows = self._view.access.cluster_keys()
        signing_key_id = self._signing_key_id(rows, now_ms)
        if rows and not signing_key_id:
            # The handles of now are not signed; they are good for a while after this broker signs.
            self._unsigned_until_ms = now_ms + self._config.unsigned_handles_ms
        accept_until_ms = max(self._unsigned_until_ms, self._accept_unsigned_until_ms(rows))
        signs_at_ms = [row.created_at_ms + self._config.cluster_key_delay_ms for row in rows]
        later_ms = [moment for moment in (*signs_at_ms, accept_until_ms) if moment > now_ms]
        self._until_ms = min(later_ms, default=_NEVER_MS)
        self._keys = HandleKeys(
            {row.key_id: row.secret for row in rows},
            signing_key_id,
            accept_unsigned=not signing_key_id or now_ms < accept_until_ms,
        )

    def _signing_key_id(self, rows: Sequence[meta_pb2.ClusterKey], now_ms: int) -> int:
        if not rows or not self._all_read_signed():
            return 0
        delay_ms = self._config.cluster_key_delay_ms
        old_enough = (row for row in rows if row.created_at_ms + delay_ms <= now_ms)
        signs = next(iter(old_enough), None)
        if signs is None and rows[-1].key_id != _FIRST_KEY_ID:
            # Both came with two rotations in a row: every broker knows the older one.
            signs = rows[-1]
        return signs.key_id if signs is not None else 0

    def _accept_unsigned_until_ms(self, rows: Sequence[meta_pb2.ClusterKey]) -> int:
        if not self._config.is_on or not rows:
            return _NEVER_MS
        oldest = rows[-1]
        if oldest.key_id != _FIRST_KEY_ID:
            return 0
        wait_ms = self._config.cluster_key_delay_ms + self._config.unsigned_handles_ms
        return oldest.created_at_ms + wait_ms

    def _all_read_signed(self) -> bool:
        """Whether every broker is of a version that reads signed handles."""
        return all(
            node.row_format >= ROW_FORMAT or node.state == meta_pb2.NODE_STATE_DOWN
            for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER)
        )


def _lease_fields(handle: ReceiptHandle) -> bytes:
    place = handle.consumer_group_id, handle.topic_id, handle.queue, handle.offset
    return _LEASE_FIELDS.pack(*place, handle.visible_at_ms)
