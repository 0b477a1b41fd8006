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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

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


def replicated_rows(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that every replica must have, kind by kind."""
    by_kind: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for row in rows:
        by_kind[row[0][_KIND_AT]].append(row)
    trimmed = {
        parse_queue_key(key): QueueRow.decode(value).min_offset
        for key, value in by_kind[RowKind.QUEUE]
    }
    begins = dict(trimmed)
    for key, value in by_kind[RowKind.TIER_LOCAL]:
        place = parse_tier_local_key(key)
        begins[place] = max(begins.get(place, 0), decode_local_offset(value))
    in_memory = {
        key[_TABLE_AT : _TABLE_AT + 4]
        for key, value in by_kind[RowKind.KV_TABLE]
        if TableRow.decode(value).engine is Engine.MEMORY
    }
    for kind, of_kind in by_kind.items():
        if kind in _NOT_COMPARED:
            continue
        match kind:
            case RowKind.KV_ITEM:
                yield from (
                    row for row in of_kind if row[0][_TABLE_AT : _TABLE_AT + 4] not in in_memory
                )
            case RowKind.TIER_LOCAL:
                yield from (
                    (key, value)
                    for key, value in of_kind
                    if decode_local_offset(value) > trimmed.get(parse_tier_local_key(key), 0)
                )
            case _ if (is_kept := _IS_KEPT.get(kind)) is not None:
                yield from (row for row in of_kind if is_kept(*row, begins))
            case _:
                yield from of_kind


def _is_id_kept(key: bytes, value: bytes, begins: Mapping[tuple[int, int], int]) -> bool:
    place = decode_id(value)
    return not isinstance(place, PendingRef) and _is_there(key, *place, begins)


def _is_key_kept(key: bytes, _: bytes, begins: Mapping[tuple[int, int], int]) -> bool:
    return _is_there(key, *parse_message_key_key(key), begins)


def _is_there(key: bytes, queue: int, offset: int, begins: Mapping[tuple[int, int], int]) -> bool:
    (topic_id,) = _TOPIC.unpack_from(key, _TOPIC_AT)
    begin = begins.get((topic_id, queue))
    if begin is None:
        # A lite topic may have ended.
        return queue < FIRST_LITE_QUEUE and offset >= 0
    return offset >= begin


def _is_place_kept(key: bytes, _: bytes, begins: Mapping[tuple[int, int], int]) -> bool:
    topic_id, queue, offset = _CQ.unpack_from(key, _CQ_AT)
    return bool(offset >= begins.get((topic_id, queue), 0))


def _is_pin_kept(_: bytes, value: bytes, begins: Mapping[tuple[int, int], int]) -> bool:
    pin = PinRow.decode(value)
    is_there = pin.state in (PinState.PLACED, PinState.RETRACTED)
    return not is_there or pin.offset >= begins.get((pin.topic_id, pin.queue), 0)


_IS_KEPT: Mapping[int, Callable[[bytes, bytes, Mapping[tuple[int, int], int]], bool]] = {
    RowKind.ID: _is_id_kept,
    RowKind.KEY: _is_key_kept,
    RowKind.CQ: _is_place_kept,
    RowKind.PIN: _is_pin_kept,
}


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
        rows = host.app.app.node.engine(raft_group).machine.rows.all()
        checksum = zlib.crc32(b"".join(chain.from_iterable(replicated_rows(rows))))
        known = self._checksums.setdefault((raft_group, applied), (checksum, host.name))
        if known[0] != checksum:
            yield (
                f"raft group {raft_group}: {known[1]} and {host.name} have different rows at "
                f"applied index {applied}"
            )
        if len(self._checksums) > _KEPT:
            self._checksums.pop(next(iter(self._checksums)))
