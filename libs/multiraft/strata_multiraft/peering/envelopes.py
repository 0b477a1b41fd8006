"""Bytes of raft messages between nodes: many envelopes of many raft groups in one frame (rule 19).

The layout is in `docs/data-layout.md`, section 8. A frame is written once from the buffers of its
entries and read without copying a payload more than once. Invariant: for any bytes, `decode`
returns envelopes exactly as they were encoded or raises `EnvelopeError`; a frame is accepted whole
or not at all. Nodes, connections and limits on frames belong to the transport.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import accumulate

import google_crc32c

from strata_multiraft.base.ports import Envelope
from strata_raft import Configuration, Entry, EntryKind, Message, SnapshotMetadata
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_MAGIC = b"RE"
_VERSION = 2
# magic, version, reserved, envelope count, bytes after the header; then the crc over all others.
_HEADER = struct.Struct(">2sBxII")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size

# kind, flags, reserved, raft group, source, target, term
_PREFIX = struct.Struct(">BBxxIQQQ")
_VOTE_REQUEST = struct.Struct(">QQQ")  # last index, last term, applied
_APPEND_REQUEST = struct.Struct(">QQQI")  # previous index, previous term, commit, entry count
_APPEND_RESPONSE = struct.Struct(">QQQ")  # index, hint index, hint term
_HEARTBEAT = struct.Struct(">QQ")  # commit, context
_HEARTBEAT_RESPONSE = struct.Struct(">QQ")  # context, applied
_SNAPSHOT = struct.Struct(">QQHHHxx")  # index, term, number of voters, learners, outgoing
_ENTRY_COLUMN_BYTES = 8 + 4 + 1  # term, payload length, kind

_FLAG_1 = 1
_FLAG_2 = 2

_ENTRY_KINDS = {int(kind): kind for kind in EntryKind}


class EnvelopeError(Exception):
    """These bytes are no frame of envelopes."""


def size_bytes(envelope: Envelope) -> int:
    """Return about how many bytes an envelope takes in a frame; exact for its entries."""
    message = envelope.message
    if isinstance(message, AppendRequest):
        fixed = _PREFIX.size + _APPEND_REQUEST.size + _ENTRY_COLUMN_BYTES * len(message.entries)
        return fixed + sum([entry.size_bytes() for entry in message.entries])
    return _PREFIX.size + _APPEND_RESPONSE.size


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """Return a frame with these envelopes in order."""
    parts: list[bytes] = [b""]
    count = 0
    for envelope in envelopes:
        _encode_message(envelope.raft_group, envelope.message, parts)
        count += 1
    length = sum(map(len, parts))
    header = _HEADER.pack(_MAGIC, _VERSION, count, length)
    crc = google_crc32c.value(header)
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    parts[0] = header + _CRC.pack(crc)
    return b"".join(parts)


def decode(data: bytes) -> list[Envelope]:
    """Return the envelopes of a frame.

    Raises:
        EnvelopeError: the bytes are damaged, cut off or of an unknown version.
    """
    if len(data) < HEADER_BYTES:
        raise EnvelopeError(f"{len(data)} bytes are no frame of envelopes")
    magic, version, count, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise EnvelopeError(f"unknown magic {magic!r} or version {version}")
    if length != len(data) - HEADER_BYTES or count * _PREFIX.size > length:
        raise EnvelopeError(f"{count} envelopes in {length} bytes, there are {len(data)}")
    crc = google_crc32c.value(data[: _HEADER.size])
    crc = google_crc32c.extend(crc, data[HEADER_BYTES:])
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc:
        raise EnvelopeError("the crc of a frame of envelopes does not match")
    envelopes: list[Envelope] = []
    position = HEADER_BYTES
    try:
        for _ in range(count):
            envelope, position = _decode_envelope(data, position)
            envelopes.append(envelope)
    except (struct.error, KeyError, ValueError) as error:
        raise EnvelopeError(f"bad envelope at byte {position}: {error!r}") from error
    if position != len(data):
        raise EnvelopeError(f"{len(data) - position} bytes after the last envelope")
    return envelopes


# -- encoding ------------------------------------------------------------------------------------


def _encode_message(raft_group: int, message: Message, parts: list[bytes]) -> None:
    flags = 0
    match message:
        case AppendRequest():
            kind = 3
            body = _APPEND_REQUEST.pack(
                message.previous_index,
                message.previous_term,
                message.commit,
                len(message.entries),
            )
        case AppendResponse():
            kind, flags = 4, _FLAG_1 * message.rejected
            body = _APPEND_RESPONSE.pack(message.index, message.hint_index, message.hint_term)
        case Heartbeat():
            kind, body = 5, _HEARTBEAT.pack(message.commit, message.context)
        case HeartbeatResponse():
            kind, body = 6, _HEARTBEAT_RESPONSE.pack(message.context, message.applied)
        case VoteRequest():
            kind, flags = 1, _FLAG_1 * message.pre_vote | _FLAG_2 * message.transfer
            body = _VOTE_REQUEST.pack(message.last_index, message.last_term, message.applied)
        case VoteResponse():
            kind, flags, body = 2, _FLAG_1 * message.pre_vote | _FLAG_2 * message.granted, b""
        case SnapshotRequest():
            kind, body = 7, _encode_snapshot(message.snapshot)
        case TimeoutNow():
            kind, body = 8, b""
    parts.append(
        _PREFIX.pack(kind, flags, raft_group, message.source, message.target, message.term) + body
    )
    if isinstance(message, AppendRequest) and message.entries:
        _encode_entries(message, parts)


def _encode_entries(request: AppendRequest, parts: list[bytes]) -> None:
    """Columns over all entries, then the payloads; indexes follow from the first one."""
    entries = request.entries
    count = len(entries)
    assert entries[0].index == request.previous_index + 1, "entries follow the previous one"
    assert entries[-1].index == request.previous_index + count, "entries have no hole"
    parts.append(
        struct.pack(
            f">{count}Q{count}I{count}B",
            *[entry.term for entry in entries],
            *[entry.size_bytes() for entry in entries],
            *[entry.kind for entry in entries],
        )
    )
    for entry in entries:
        parts.extend(entry.payload)


def _encode_snapshot(snapshot: SnapshotMetadata) -> bytes:
    configuration = snapshot.configuration
    members = (configuration.voters, configuration.learners, configuration.outgoing)
    numbers = [len(replicas) for replicas in members]
    ids = [replica_id for replicas in members for replica_id in sorted(replicas)]
    return _SNAPSHOT.pack(snapshot.index, snapshot.term, *numbers) + struct.pack(
        f">{len(ids)}Q", *ids
    )


# -- decoding ------------------------------------------------------------------------------------


def _decode_envelope(data: bytes, position: int) -> tuple[Envelope, int]:
    kind, flags, raft_group, source, target, term = _PREFIX.unpack_from(data, position)
    message, position = _DECODERS[kind](
        data, position + _PREFIX.size, flags, (source, target, term)
    )
    return Envelope(raft_group, message), position


_Addresses = tuple[int, int, int]
_Decoded = tuple[Message, int]


def _vote_request(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    last_index, last_term, applied = _VOTE_REQUEST.unpack_from(data, position)
    pre_vote, transfer = bool(flags & _FLAG_1), bool(flags & _FLAG_2)
    message = VoteRequest(*addresses, last_index, last_term, pre_vote, transfer, applied)
    return message, position + _VOTE_REQUEST.size


def _vote_response(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    return VoteResponse(*addresses, bool(flags & _FLAG_2), bool(flags & _FLAG_1)), position


def _append_request(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    previous_index, previous_term, commit, count = _APPEND_REQUEST.unpack_from(data, position)
    position += _APPEND_REQUEST.size
    entries: tuple[Entry, ...] = ()
    if count:
        entries, position = _decode_entries(data, position, count, previous_index + 1)
    message = AppendRequest(*addresses, previous_index, previous_term, entries, commit)
    return message, position


def _decode_entries(
    data: bytes, position: int, count: int, first_index: int
) -> tuple[tuple[Entry, ...], int]:
    start = position + _ENTRY_COLUMN_BYTES * count
    if start > len(data):
        raise ValueError(f"{count} entries are announced")
    columns = struct.unpack_from(f">{count}Q{count}I{count}B", data, position)
    ends = list(accumulate(columns[count : 2 * count], initial=start))
    if ends[-1] > len(data):
        raise ValueError("payloads are cut off")
    entries = tuple(
        Entry(
            columns[number],
            first_index + number,
            _ENTRY_KINDS[columns[2 * count + number]],
            (data[ends[number] : ends[number + 1]],),
        )
        for number in range(count)
    )
    return entries, ends[-1]


def _append_response(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    index, hint_index, hint_term = _APPEND_RESPONSE.unpack_from(data, position)
    message = AppendResponse(*addresses, index, bool(flags & _FLAG_1), hint_index, hint_term)
    return message, position + _APPEND_RESPONSE.size


def _heartbeat(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    commit, context = _HEARTBEAT.unpack_from(data, position)
    return Heartbeat(*addresses, commit, context), position + _HEARTBEAT.size


def _heartbeat_response(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    context, applied = _HEARTBEAT_RESPONSE.unpack_from(data, position)
    return HeartbeatResponse(*addresses, context, applied), position + _HEARTBEAT_RESPONSE.size


def _snapshot_request(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    index, term, voters, learners, outgoing = _SNAPSHOT.unpack_from(data, position)
    position += _SNAPSHOT.size
    ids = struct.unpack_from(f">{voters + learners + outgoing}Q", data, position)
    configuration = Configuration(
        frozenset(ids[:voters]),
        frozenset(ids[voters : voters + learners]),
        frozenset(ids[voters + learners :]),
    )
    message = SnapshotRequest(*addresses, SnapshotMetadata(index, term, configuration))
    return message, position + 8 * len(ids)


def _timeout_now(data: bytes, position: int, flags: int, addresses: _Addresses) -> _Decoded:
    return TimeoutNow(*addresses), position


_DECODERS: dict[int, Callable[[bytes, int, int, _Addresses], _Decoded]] = {
    1: _vote_request,
    2: _vote_response,
    3: _append_request,
    4: _append_response,
    5: _heartbeat,
    6: _heartbeat_response,
    7: _snapshot_request,
    8: _timeout_now,
}
