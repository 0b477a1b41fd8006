"""Tables of metadata rows in memory: one reader of snapshots and changes for every view.

A view says which rows it keeps and what it derives from them (`RowTables`). `TablesReader` says
when they count: a response is taken in whole, and a snapshot of many responses replaces the tables
when its last part is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2

Key = TypeVar("Key")
Row = TypeVar("Row", bound=Message)

NO_RAFT_GROUP = 0
"""Owner of a slot that no raft group holds; raft groups of queues are numbered from 1."""


class RowTables(Protocol):
    """The rows that a view keeps."""

    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""

    def replaces(self, others: Self) -> None:
        """Take the place of other tables: these are a whole snapshot."""


Tables = TypeVar("Tables", bound=RowTables)


class TablesReader(Generic[Tables]):
    """Keeps tables up to date with the responses of a watch. Used on the event loop only.

    Args:
        make: makes empty tables.

    Attributes:
        tables: all rows at `revision`.
        revision: of what was taken in; 0: nothing yet.
        responses: number of those taken in, parts of snapshots included.
    """

    def __init__(self, make: Callable[[], Tables]) -> None:
        self._make = make
        self.responses = 0
        self.tables = make()
        self.revision = 0
        # Parts of a snapshot that is not complete.
        self._coming: Tables | None = None

    def apply(self, response: meta_pb2.WatchResponse) -> bool:
        """Take in a response (see `follower.MetadataSink`).

        Returns:
            Whether the tables are at the response's revision; False: it is a part of a snapshot of
            which more is to come.
        """
        self.responses += 1
        if response.snapshot:
            self._coming = self._make()
        elif not response.snapshot_revision:
            # The rest of a snapshot never arrived.
            self._coming = None
        tables = self._coming or self.tables
        for change in response.changes:
            tables.take(change)
        if not response.revision:
            return False
        if tables is not self.tables:
            tables.replaces(self.tables)
            self.tables, self._coming = tables, None
        self.revision = response.revision
        return True


def put_row(table: dict[Key, Row], key: Key, row: Row, *, deleted: bool) -> None:
    """Write or delete a row of a table."""
    if deleted:
        table.pop(key, None)
    else:
        table[key] = copy_row(row)


def copy_row(row: Row) -> Row:
    """Return a copy of a row, so that the row does not keep its whole response in memory."""
    copy = type(row)()
    copy.CopyFrom(row)
    return copy
