"""Archives: the data that a restore needs beside the messages (rule 29).

An archive is a checkpoint of a raft group with the entries of its pending messages, or the rows of
the nameserver. Layout: docs/data-layout.md section 9, "Archive". It does not know what rows mean.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum

from strata_state.ports import Row
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import check, checksum

_HEAD = struct.Struct(">4sBBHIII")
_SECTION = struct.Struct(">III")
_CHECKSUM = struct.Struct(">I")
_ROW = struct.Struct(">HI")
_ENTRY = struct.Struct(">QQI")
_MAGIC = b"STAR"
_VERSION = 1

SECTION_BYTES = 4 * 1024 * 1024
"""Rows and entries are cut into sections of about this size."""

NO_RAFT_GROUP = -1


class SectionKind(IntEnum):
    """Content of a section."""

    ROWS = 1
    ENTRIES = 2
    END = 3


@dataclass(frozen=True, slots=True)
class Description:
    """Subject of an archive.

    Attributes:
        home: id of the cluster.
        raft_group: whose checkpoint; -1: rows of the nameserver.
        raft_index, term: up to which entry.
        group_time_ms: of that entry.
        written_at_ms: wall time of the upload.
        names: topic id, as text -> NAMESPACE%NAME, of topics that the rows are about.
    """

    home: str
    raft_group: int
    raft_index: int
    term: int
    group_time_ms: int
    written_at_ms: int
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchivedEntry:
    """An entry of the log that messages which wait are in."""

    raft_index: int
    term: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Archive:
    """The contents of an archive."""

    description: Description
    rows: Sequence[Row]
    entries: Sequence[ArchivedEntry]


def encode_archive(
    description: Description,
    rows: Iterable[Row],
    entries: Iterable[ArchivedEntry] = (),
    *,
    names: Callable[[], dict[str, str]] | None = None,
) -> list[bytes]:
    """Return the bytes of an archive, in parts.

    Args:
        description: of its subject.
        rows: iterated once.
        entries: iterated once, after the rows.
        names: gives those of the description, once all rows were read.
    """
    sections = [
        *[(SectionKind.ROWS, part) for part in _parts(map(_packed_row, rows))],
        *[(SectionKind.ENTRIES, part) for part in _parts(map(_packed_entry, entries))],
        (SectionKind.END, b""),
    ]
    if names is not None:
        description = replace(description, names=names())
    text = json.dumps(asdict(description), sort_keys=True, ensure_ascii=False).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, 0, 0, len(sections), len(text), checksum(text))
    data = [head, _CHECKSUM.pack(checksum(head)), text]
    for kind, payload in sections:
        of_section = _SECTION.pack(kind, len(payload), checksum(payload))
        data += [of_section, _CHECKSUM.pack(checksum(of_section)), payload]
    return data


def decode_archive(data: bytes, key: str) -> Archive:
    """Return the contents of an archive.

    Raises:
        DamagedObjectError: it is not what was written.
    """
    try:
        section_count, description, at = _decode_head(data, key)
        rows: list[Row] = []
        entries: list[ArchivedEntry] = []
        kind = None
        for _ in range(section_count):
            kind, payload, at = _decode_section(data, at, key)
            if kind == SectionKind.ROWS:
                rows += _rows(payload)
            elif kind == SectionKind.ENTRIES:
                entries += _entries(payload)
        if kind != SectionKind.END or at != len(data):
            raise DamagedObjectError(key, "the archive does not end where it should")
    except (struct.error, ValueError, TypeError) as error:
        raise DamagedObjectError(key, f"archive: {error!r}") from error
    return Archive(description, rows, entries)


def _decode_head(data: bytes, key: str) -> tuple[int, Description, int]:
    (head_checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    check(data[: _HEAD.size], head_checksum, key, "archive head")
    magic, version, _, _, section_count, text_bytes, text_checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedObjectError(key, f"archive of version {version}, this one reads {_VERSION}")
    at = _HEAD.size + _CHECKSUM.size
    text = data[at : at + text_bytes]
    check(text, text_checksum, key, "archive description")
    return section_count, Description(**json.loads(text)), at + text_bytes


def _decode_section(data: bytes, at: int, key: str) -> tuple[int, bytes, int]:
    (of_section,) = _CHECKSUM.unpack_from(data, at + _SECTION.size)
    check(data[at : at + _SECTION.size], of_section, key, f"archive section at {at}")
    kind, length, of_payload = _SECTION.unpack_from(data, at)
    first = at + _SECTION.size + _CHECKSUM.size
    payload = data[first : first + length]
    check(payload, of_payload, key, f"archive section at {at}")
    return kind, payload, first + length


def _packed_row(row: Row) -> bytes:
    key, value = row
    return _ROW.pack(len(key), len(value)) + key + value


def _packed_entry(entry: ArchivedEntry) -> bytes:
    head = _ENTRY.pack(entry.raft_index, entry.term, len(entry.payload))
    return head + entry.payload


def _parts(items: Iterable[bytes]) -> Iterator[bytes]:
    part: list[bytes] = []
    size = 0
    for item in items:
        part.append(item)
        size += len(item)
        if size >= SECTION_BYTES:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


def _rows(payload: bytes) -> Iterator[Row]:
    at = 0
    while at < len(payload):
        key_bytes, value_bytes = _ROW.unpack_from(payload, at)
        at += _ROW.size
        key = payload[at : at + key_bytes]
        at += key_bytes
        yield key, payload[at : at + value_bytes]
        at += value_bytes


def _entries(payload: bytes) -> Iterator[ArchivedEntry]:
    at = 0
    while at < len(payload):
        raft_index, term, length = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        yield ArchivedEntry(raft_index, term, payload[at : at + length])
        at += length
