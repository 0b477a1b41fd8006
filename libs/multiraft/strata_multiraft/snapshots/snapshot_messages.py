"""Conversion of snapshot parts to protobuf messages and back; checksums are passed on unchanged."""

from __future__ import annotations

from strata.raft.v1 import raft_pb2
from strata_multiraft.base.snapshots import (
    SnapshotEnd,
    SnapshotEntries,
    SnapshotFetch,
    SnapshotPart,
    SnapshotRows,
    SnapshotStart,
)
from strata_raft import Configuration, Entry, EntryKind


def as_request(fetch: SnapshotFetch) -> raft_pb2.FetchSnapshotRequest:
    """Return the request for a snapshot."""
    return raft_pb2.FetchSnapshotRequest(
        raft_group=fetch.raft_group,
        source_replica_id=fetch.source_replica_id,
        target_replica_id=fetch.target_replica_id,
        index=fetch.index,
        term=fetch.term,
        rows_after=fetch.rows_after,
        entries_from=fetch.entries_from,
    )


def as_fetch(request: raft_pb2.FetchSnapshotRequest) -> SnapshotFetch:
    """Return what a request asks for."""
    return SnapshotFetch(
        raft_group=request.raft_group,
        source_replica_id=request.source_replica_id,
        target_replica_id=request.target_replica_id,
        index=request.index,
        term=request.term,
        rows_after=request.rows_after,
        entries_from=request.entries_from,
    )


def as_response(part: SnapshotPart) -> raft_pb2.FetchSnapshotResponse:
    """Return one part as a response of the stream."""
    response = raft_pb2.FetchSnapshotResponse()
    match part:
        case SnapshotStart():
            configuration = part.configuration
            response.start.index = part.index
            response.start.term = part.term
            response.start.voters.extend(sorted(configuration.voters))
            response.start.learners.extend(sorted(configuration.learners))
            response.start.outgoing.extend(sorted(configuration.outgoing))
            response.start.first_entry_index = part.first_entry_index
        case SnapshotRows():
            response.rows.keys.extend(part.keys)
            response.rows.values.extend(part.values)
            response.rows.crc = part.crc
        case SnapshotEntries():
            entries = part.entries
            response.entries.first_index = entries[0].index if entries else 0
            response.entries.terms.extend(entry.term for entry in entries)
            response.entries.kinds = bytes(entry.kind for entry in entries)
            response.entries.payloads.extend(b"".join(entry.payload) for entry in entries)
            response.entries.crc = part.crc
        case SnapshotEnd():
            response.end.row_count = part.row_count
            response.end.entry_count = part.entry_count
    return response


def as_part(response: raft_pb2.FetchSnapshotResponse) -> SnapshotPart:
    """Return the part that a response carries.

    Raises:
        ValueError: it carries none, or its columns do not fit together.
    """
    match response.WhichOneof("part"):
        case "start":
            start = response.start
            return SnapshotStart(
                start.index,
                start.term,
                Configuration(
                    frozenset(start.voters), frozenset(start.learners), frozenset(start.outgoing)
                ),
                start.first_entry_index,
            )
        case "rows":
            rows = response.rows
            return SnapshotRows(tuple(rows.keys), tuple(rows.values), rows.crc)
        case "entries":
            return SnapshotEntries(_entries(response.entries), response.entries.crc)
        case "end":
            return SnapshotEnd(response.end.row_count, response.end.entry_count)
        case other:
            raise ValueError(f"a snapshot has no part {other}")


def _entries(message: raft_pb2.SnapshotEntries) -> tuple[Entry, ...]:
    columns = zip(message.terms, message.kinds, message.payloads, strict=True)
    return tuple(
        Entry(term, index, EntryKind(kind), (payload,))
        for index, (term, kind, payload) in enumerate(columns, message.first_index)
    )
