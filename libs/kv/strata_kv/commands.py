"""KV_WRITE: the one command of key-value tables. Layout: docs/data-layout.md section 4.

It carries a leader's decision about one batch of requests: per table and request the changes of
items and the table's row afterwards, and the answer, which a repeat of the batch gets again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strata_kv.model import ChangeKind
from strata_kv.rows import TABLE_ROW_BYTES, ItemChange, TableRow
from strata_mq.commands import VERSION, CommandError, CommandKind

# Kind, version, sections, reply length, group time, broker boot id, sequence.
_HEAD = struct.Struct(">BBHIQQQ")
# Table id, changes, reserved.
_SECTION = struct.Struct(">IHH")
# Kind, flags, key length, value length, create revision, version, expires at.
_CHANGE = struct.Struct(">BBHIQQQ")
_OLD_EXPIRY = struct.Struct(">Q")
_HAD_EXPIRY = 1


class RequestEffects(NamedTuple):
    """Effects of one request on its table.

    Attributes:
        table_id: of the table.
        table: its row afterwards; the changes have its revision.
        changes: at least one, unless the request only made the table.
    """

    table_id: int
    table: TableRow
    changes: Sequence[ItemChange]


class KvWrite(NamedTuple):
    """A decoded command.

    Attributes:
        group_time_ms: when it was decided.
        broker_boot_id, sequence: of the batch; boot id 0: the leader's own (expiry).
        reply: a serialised `strata.kv.v1.WriteResponse`.
        sections: in the order of the requests.
    """

    group_time_ms: int
    broker_boot_id: int
    sequence: int
    reply: bytes
    sections: Sequence[RequestEffects]


def encode_kv_write(command: KvWrite) -> bytes:
    """Return the payload of an entry."""
    pieces = [
        _HEAD.pack(
            CommandKind.KV_WRITE,
            VERSION,
            len(command.sections),
            len(command.reply),
            command.group_time_ms,
            command.broker_boot_id,
            command.sequence,
        ),
        command.reply,
    ]
    for table_id, table, changes in command.sections:
        pieces += (_SECTION.pack(table_id, len(changes), 0), table.encode())
        for kind, key, value, created, version, expires_at_ms, old_expires_at_ms in changes:
            flags = _HAD_EXPIRY if old_expires_at_ms else 0
            pieces.append(
                _CHANGE.pack(kind, flags, len(key), len(value), created, version, expires_at_ms)
            )
            if flags:
                pieces.append(_OLD_EXPIRY.pack(old_expires_at_ms))
            pieces += (key, value)
    return b"".join(pieces)


def decode_kv_write(payload: bytes) -> KvWrite:
    """Return the command of a payload.

    Raises:
        CommandError: it is cut, or no KV_WRITE of this version.
    """
    try:
        kind, version, count, reply_bytes, group_time_ms, boot_id, sequence = _HEAD.unpack_from(
            payload
        )
        if (kind, version) != (CommandKind.KV_WRITE, VERSION):
            raise CommandError(f"no KV_WRITE of version {VERSION}: {payload[:2]!r}")
        at = _HEAD.size + reply_bytes
        reply = payload[_HEAD.size : at]
        sections: list[RequestEffects] = []
        for _ in range(count):
            table_id, change_count, _ = _SECTION.unpack_from(payload, at)
            at += _SECTION.size
            table = TableRow.decode(payload, at)
            at += TABLE_ROW_BYTES
            changes = []
            for change, end in _changes(payload, at, change_count):
                changes.append(change)
                at = end
            sections.append(RequestEffects(table_id, table, changes))
    except struct.error as error:
        raise CommandError(f"KV_WRITE is cut: {error}") from error
    if at != len(payload):
        raise CommandError(f"KV_WRITE has {len(payload) - at} bytes too many (negative: too few)")
    return KvWrite(group_time_ms, boot_id, sequence, reply, sections)


def _changes(payload: bytes, at: int, count: int) -> Iterator[tuple[ItemChange, int]]:
    """Iterate (change, where it ends)."""
    for _ in range(count):
        kind, flags, key_bytes, value_bytes, created, version, expires_at_ms = _CHANGE.unpack_from(
            payload, at
        )
        at += _CHANGE.size
        old_expires_at_ms = 0
        if flags & _HAD_EXPIRY:
            [old_expires_at_ms] = _OLD_EXPIRY.unpack_from(payload, at)
            at += _OLD_EXPIRY.size
        key = payload[at : at + key_bytes]
        at += key_bytes
        value = payload[at : at + value_bytes]
        at += value_bytes
        yield (
            ItemChange(
                ChangeKind(kind), key, value, created, version, expires_at_ms, old_expires_at_ms
            ),
            at,
        )
