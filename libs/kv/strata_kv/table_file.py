"""A table in a file, written by an export and read by an import. Layout: docs/data-layout.md.

Items are in key order, so equal tables of any cluster give equal files. A checksum covers every
byte; a file without its end is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import google_crc32c

from strata_kv.model import Item

_MAGIC = b"SMQK"
_VERSION = 1
_HEAD = struct.Struct(">4sB3x")
# Item count, bytes behind it, crc of the 8 bytes before and of these.
_BLOCK = struct.Struct(">II")
_CRC = struct.Struct(">I")
# Key length, value length, version, expires at.
_ITEM = struct.Struct(">IIQQ")
# Items, crc over all items of the file.
_END = struct.Struct(">QI")
_BLOCK_BYTES = 1024 * 1024


class TableFileError(Exception):
    """The file is no table, or it is damaged or cut; the text says where."""


class TableSummary(NamedTuple):
    """Contents of a file.

    Attributes:
        items: how many.
        crc32c: over all of them: equal tables have the same one.
        size_bytes: of the file.
    """

    items: int
    crc32c: int
    size_bytes: int


def write_table(file: BinaryIO, items: Iterable[Item]) -> TableSummary:
    """Write items, in the order of their keys."""
    size_bytes = file.write(_HEAD.pack(_MAGIC, _VERSION))
    count = total_crc = 0
    for item_count, body in _blocks(items):
        size_bytes += _write_block(file, item_count, body)
        count += item_count
        total_crc = google_crc32c.extend(total_crc, body)
    size_bytes += _write_block(file, 0, _END.pack(count, total_crc))
    return TableSummary(count, total_crc, size_bytes)


def _blocks(items: Iterable[Item]) -> Iterator[tuple[int, bytes]]:
    """Iterate (item count, bytes) of blocks, cut by the items alone: equal tables, equal files."""
    pieces: list[bytes] = []
    count = size_bytes = 0
    for item in items:
        head = _ITEM.pack(len(item.key), len(item.value), item.version, item.expires_at_ms)
        pieces += (head, item.key, item.value)
        count += 1
        size_bytes += len(head) + len(item.key) + len(item.value)
        if size_bytes >= _BLOCK_BYTES:
            yield count, b"".join(pieces)
            pieces, count, size_bytes = [], 0, 0
    if count:
        yield count, b"".join(pieces)


def _write_block(file: BinaryIO, count: int, body: bytes) -> int:
    """Write a block; return its size."""
    head = _BLOCK.pack(count, len(body))
    crc = _CRC.pack(google_crc32c.value(head + body))
    return file.write(b"".join((head, crc, body)))


def read_table(file: BinaryIO) -> Iterator[Sequence[Item] | TableSummary]:
    """Iterate the items of a file, some at a time; the last one is what the file holds.

    Raises:
        TableFileError: damage. All before it is as it was written.
    """
    size_bytes = _HEAD.size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or _HEAD.unpack(head) != (_MAGIC, _VERSION):
        raise TableFileError("no exported table, or one of another version")
    count = total_crc = 0
    while True:
        item_count, body = _read_block(file, size_bytes)
        size_bytes += _BLOCK.size + _CRC.size + len(body)
        if not item_count:
            break
        total_crc = google_crc32c.extend(total_crc, body)
        items = _items(body, item_count)
        count += len(items)
        yield items
    if len(body) != _END.size or _END.unpack(body) != (count, total_crc):
        raise TableFileError(f"its end names other items than the {count} that are there")
    if file.read(1):
        raise TableFileError("there are bytes behind its end")
    yield TableSummary(count, total_crc, size_bytes)


def _read_block(file: BinaryIO, position: int) -> tuple[int, bytes]:
    head = file.read(_BLOCK.size + _CRC.size)
    if len(head) < _BLOCK.size + _CRC.size:
        raise TableFileError(f"it is cut at byte {position}")
    item_count, body_bytes = _BLOCK.unpack_from(head)
    body = file.read(body_bytes)
    if len(body) < body_bytes:
        raise TableFileError(f"it is cut in the block at byte {position}")
    if google_crc32c.value(head[: _BLOCK.size] + body) != _CRC.unpack_from(head, _BLOCK.size)[0]:
        raise TableFileError(f"the block at byte {position} is damaged")
    return item_count, body


def _items(body: bytes, count: int) -> list[Item]:
    items: list[Item] = []
    at = 0
    for _ in range(count):
        key_bytes, value_bytes, version, expires_at_ms = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        key = body[at : at + key_bytes]
        at += key_bytes
        items.append(Item(key, body[at : at + value_bytes], version, 0, 0, expires_at_ms))
        at += value_bytes
    return items
