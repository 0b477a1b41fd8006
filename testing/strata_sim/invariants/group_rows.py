"""Replicas of a raft group have the same rows at the same applied index, byte for byte.

Rows of trimmed messages are left out: their ids and keys are deleted with their day or by the next
rebuild. So are those of lite topics that ended. Traces are left out too, since a rebuild restores
only those that the log still has. The place of a message that the log may have given up is left
out: a replica that rebuilt its rows from the tier knows neither the entry nor that the message once
waited. A local offset below what is trimmed says nothing, and is higher where rows were rebuilt.
Items of tables in memory are written to the rows at each replica's own time.

A replica that started is compared once it has applied what its log held by then. If its rows were
rebuilt, a checkpoint gave the small ones, and the log the others: but the log has freed what later
entries trimmed, and rows of that are missing until those entries are applied again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

from strata_kv.model import Engine
from strata_kv.rows import TableRow
from strata_mq.layout import (
    PendingRef,
    PinRow,
    PinState,
    QueueRow,
    RowKind,
    decode_id,
    decode_local_offset,
    parse_message_key_key,
    parse_queue_key,
    parse_tier_local_key,
)
from strata_mq.slots import FIRST_LITE_QUEUE
from strata_multiraft import Replica
from strata_sim.hosts import AnyHost, StorageHost

_KEPT = 2_000
_KIND_AT = 4
# After raft group, kind and day.
_TOPIC, _TOPIC_AT = struct.Struct(">I"), 7
# After raft group and kind.
_CQ, _CQ_AT = struct.Struct(">IIQ"), 5
_TABLE_AT = 5
_NOT_COMPARED = (RowKind.TRACE, RowKind.CLIENT_NAME, RowKind.KV_SETTLED)


def replicated_rows(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that every replica must have."""
    trimmed = {
        parse_queue_key(key): QueueRow.decode(value).min_offset
        for key, value in rows
        if key[_KIND_AT] == RowKind.QUEUE
    }
    begins = dict(trimmed)
    for key, value in rows:
        if key[_KIND_AT] == RowKind.TIER_LOCAL:
            place = parse_tier_local_key(key)
            begins[place] = max(begins.get(place, 0), decode_local_offset(value))
    in_memory = {
        key[_TABLE_AT : _TABLE_AT + 4]
        for key, value in rows
        if key[_KIND_AT] == RowKind.KV_TABLE and TableRow.decode(value).engine is Engine.MEMORY
    }
    for key, value in rows:
        if key[_KIND_AT] == RowKind.KV_ITEM and key[_TABLE_AT : _TABLE_AT + 4] in in_memory:
            continue
        if key[_KIND_AT] == RowKind.TIER_LOCAL:
            if decode_local_offset(value) > trimmed.get(parse_tier_local_key(key), 0):
                yield key, value
            continue
        if key[_KIND_AT] not in _NOT_COMPARED and _is_kept(key, value, begins):
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
        case RowKind.CQ:
            topic_id, queue, offset = _CQ.unpack_from(key, _CQ_AT)
            return bool(offset >= begins.get((topic_id, queue), 0))
        case RowKind.PIN:
            pin = PinRow.decode(value)
            begin = begins.get((pin.topic_id, pin.queue), 0)
            is_there = pin.state in (PinState.PLACED, PinState.RETRACTED)
            return not is_there or pin.offset >= begin
        case _:
            return True
    (topic_id,) = _TOPIC.unpack_from(key, _TOPIC_AT)
    has_ended = queue >= FIRST_LITE_QUEUE and (topic_id, queue) not in begins
    return not has_ended and offset >= begins.get((topic_id, queue), 0)


class EqualRows:
    """Remembers a checksum of the rows at each applied index that was looked at."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._checksums: dict[tuple[int, int], tuple[int, str]] = {}
        self._seen: dict[tuple[str, int], int] = {}
        # By node and raft group: the replica that started, and the last index of its log by then.
        self._started: dict[tuple[str, int], tuple[Replica, int]] = {}

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            if not isinstance(host, StorageHost) or host.app is None:
                continue
            for raft_group, replica in host.replicas().items():
                if replica.installing or replica.is_resetting or replica.read_only:
                    continue
                applied = replica.machine.applied_index()
                if applied >= self._index_at_start(host.name, raft_group, replica):
                    yield from self._look_at(host, raft_group, applied)

    def _index_at_start(self, name: str, raft_group: int, replica: Replica) -> int:
        known = self._started.get((name, raft_group))
        if known is None or known[0] is not replica:
            known = self._started[name, raft_group] = replica, replica.last_index
        return known[1]

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
