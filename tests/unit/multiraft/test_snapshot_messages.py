"""Snapshot parts as protobuf messages: they come back as they were, or are refused."""

from __future__ import annotations

import pytest

from strata.raft.v1 import raft_pb2
from strata_multiraft.base.snapshots import (
    SnapshotEnd,
    SnapshotEntries,
    SnapshotFetch,
    SnapshotPart,
    SnapshotRows,
    SnapshotStart,
)
from strata_multiraft.snapshots.snapshot_messages import as_fetch, as_part, as_request, as_response
from strata_raft import Configuration, Entry, EntryKind

ENTRIES = (
    Entry(2, 10, EntryKind.NORMAL, (b"a", b"bc")),
    Entry(3, 11, EntryKind.NO_OP, ()),
    Entry(3, 12, EntryKind.CONFIGURATION, (b"x",)),
)
CONFIGURATION = Configuration(frozenset({1, 2}), frozenset({3}), frozenset({4}))


@pytest.mark.parametrize(
    "fetch",
    [SnapshotFetch(1, 2, 3, 4, 5), SnapshotFetch(1, 2, 3, 4, 5, rows_after=b"k", entries_from=9)],
)
def test_requests_come_back(fetch: SnapshotFetch) -> None:
    """Every field of a request arrives."""
    assert as_fetch(as_request(fetch)) == fetch


@pytest.mark.parametrize(
    "part",
    [
        SnapshotStart(20, 3, CONFIGURATION, 10),
        SnapshotRows((b"k1", b"k2"), (b"v1", b""), 77),
        SnapshotRows((), (), 0),
        SnapshotEnd(5, 6),
    ],
)
def test_parts_come_back(part: SnapshotPart) -> None:
    """Every field of a part arrives."""
    assert as_part(as_response(part)) == part


def test_entries_come_back_with_their_checksum() -> None:
    """Entries arrive with joined payloads; the checksum made before holds after."""
    part = as_part(as_response(SnapshotEntries(ENTRIES).sealed()))
    assert isinstance(part, SnapshotEntries)
    part.check()
    assert [(e.term, e.index, e.kind, b"".join(e.payload)) for e in part.entries] == [
        (2, 10, EntryKind.NORMAL, b"abc"),
        (3, 11, EntryKind.NO_OP, b""),
        (3, 12, EntryKind.CONFIGURATION, b"x"),
    ]


@pytest.mark.parametrize(
    "response",
    [
        raft_pb2.FetchSnapshotResponse(),
        raft_pb2.FetchSnapshotResponse(
            entries=raft_pb2.SnapshotEntries(first_index=1, terms=[1], kinds=b"", payloads=[b""])
        ),
        raft_pb2.FetchSnapshotResponse(
            entries=raft_pb2.SnapshotEntries(
                first_index=1, terms=[1], kinds=b"\x09", payloads=[b""]
            )
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(response: raft_pb2.FetchSnapshotResponse) -> None:
    """No part, columns of different lengths, an unknown kind of entry: a ValueError."""
    with pytest.raises(ValueError, match=r"part|argument|EntryKind"):
        as_part(response)
