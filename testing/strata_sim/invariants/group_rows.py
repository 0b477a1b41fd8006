"""Replicas of a raft group have the same rows at the same applied index, byte for byte.

Rows of trimmed messages are left out: their ids and keys are deleted with their day or by the next
rebuild. Traces are left out too, since a rebuild restores only those that the log still has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

from strata_mq.layout import (
    PendingRef,
    QueueRow,
    RowKind,
    decode_id,
    parse_message_key_key,
    parse_queue_key,
)
from strata_sim.hosts import AnyHost, StorageHost

_KEPT = 2_000
_KIND_AT = 4
# After raft group, kind and day.
_TOPIC, _TOPIC_AT = struct.Struct(">I"), 7
_REBUILT_IN_PART = (RowKind.TRACE, RowKind.CLIENT_NAME)


def replicated_rows(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that every replica must have."""
    begins = {
        parse_queue_key(key): QueueRow.decode(value).min_offset
        for key, value in rows
        if key[_KIND_AT] == RowKind.QUEUE
    }
    for key, value in rows:
        if key[_KIND_AT] not in _REBUILT_IN_PART and _is_kept(key, value, begins):
            yield key, value


def _is_kept(key: bytes, value: bytes, begins: Mapping[tuple[int, int], int]) -> bool:
    match key[_KIND_AT]:
        case RowKind.ID:
            place = decode_id(value)
            if isinstance(place, PendingRef):
                return False
            queue, offset = place
        case RowKind.KEY:
            queue, offset = parse_message_key_key(key)
        case _:
            return True
    (topic_id,) = _TOPIC.unpack_from(key, _TOPIC_AT)
    return offset >= begins.get((topic_id, queue), 0)


class EqualRows:
    """Remembers a checksum of the rows at each applied index that was looked at."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._checksums: dict[tuple[int, int], tuple[int, str]] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def look(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.look`."""
        for host in hosts:
            if not isinstance(host, StorageHost) or host.app is None:
                continue
            for raft_group, replica in host.replicas().items():
                if replica.installing or replica.is_resetting or replica.read_only:
                    continue
                yield from self._look_at(host, raft_group, replica.machine.applied_index())

    def _look_at(self, host: StorageHost, raft_group: int, applied: int) -> Iterator[str]:
        assert host.app is not None
        key = (host.name, raft_group)
        if not applied or self._seen.get(key) == applied:
            return
        self._seen[key] = applied
        checksum = 0
        rows = list(host.app.app.node.engine(raft_group).machine.rows.all())
        for row_key, value in replicated_rows(rows):
            checksum = zlib.crc32(value, zlib.crc32(row_key, checksum))
        known = self._checksums.setdefault((raft_group, applied), (checksum, host.name))
        if known[0] != checksum:
            yield (
                f"raft group {raft_group}: {known[1]} and {host.name} have different rows at "
                f"applied index {applied}"
            )
        if len(self._checksums) > _KEPT:
            self._checksums.pop(next(iter(self._checksums)))
