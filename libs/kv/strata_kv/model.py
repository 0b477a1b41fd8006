"""Values that clients of tables use, and their conversion to requests and from responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from strata.kv.v1 import kv_pb2


class Consistency(IntEnum):
    """Guarantee of a read."""

    LEADER = kv_pb2.CONSISTENCY_LEADER
    """Everything acknowledged before the call, read at the leader."""
    FOLLOWER = kv_pb2.CONSISTENCY_FOLLOWER
    """The same, read at another replica."""
    STALE = kv_pb2.CONSISTENCY_STALE
    """The rows of any replica; they may be old."""


class Engine(IntEnum):
    """Engine that holds a table's items."""

    ROCKSDB = kv_pb2.ENGINE_ROCKSDB
    MEMORY = kv_pb2.ENGINE_MEMORY


class ChangeKind(IntEnum):
    """Kind of a change of an item."""

    PUT = kv_pb2.CHANGE_KIND_PUT
    DELETE = kv_pb2.CHANGE_KIND_DELETE
    EXPIRE = kv_pb2.CHANGE_KIND_EXPIRE


class Item(NamedTuple):
    """An item of a table.

    Attributes:
        key, value: what was put.
        version: writes since it was created, from 1.
        create_revision, modify_revision: of the table, when it was created and last written.
        expires_at_ms: when it ends; 0: never.
    """

    key: bytes
    value: bytes
    version: int
    create_revision: int
    modify_revision: int
    expires_at_ms: int


class Written(NamedTuple):
    """Outcome of a put or of a compare-and-set.

    Attributes:
        done: whether the item was written.
        revision: of the table afterwards.
        version: of the item, if it was written.
        current: what stood in the way; None: nothing is there, or the answer was lost once.
    """

    done: bool
    revision: int
    version: int
    current: Item | None


class BatchWritten(NamedTuple):
    """Outcome of a batch.

    Attributes:
        done: whether all of it happened; else nothing did.
        revision: of the table afterwards.
        versions: of the items, one per operation; 0: it is gone, or was only checked.
        failed_operation: the first one whose condition does not hold.
        current: what stood in its way.
    """

    done: bool
    revision: int
    versions: Sequence[int]
    failed_operation: int
    current: Item | None


class Change(NamedTuple):
    """One change, as a watch tells it; the item of a deletion has no value."""

    kind: ChangeKind
    item: Item


class Changes(NamedTuple):
    """The changes of one revision; none in the first one of a watch."""

    revision: int
    changes: Sequence[Change]


class Page(NamedTuple):
    """A page of items; `continuation` gives the next one, b"": there is none."""

    items: Sequence[Item]
    continuation: bytes
    revision: int


class TableInfo(NamedTuple):
    """State of a table."""

    name: str
    engine: Engine | None
    revision: int
    compacted_revision: int
    key_count: int
    byte_count: int
    raft_group: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a batch: puts `value`, deletes, or (with neither) only checks.

    Attributes:
        key: of the item.
        value: what to put; None: nothing.
        delete: whether the item goes.
        ttl_s: how long the item stays; 0: forever.
        version: which one must be there before; 0: none may be; None: any.
        expected: which value must be there before; None: any.
    """

    key: bytes
    value: bytes | None = None
    delete: bool = False
    ttl_s: float = 0
    version: int | None = None
    expected: bytes | None = None

    def message(self) -> kv_pb2.Operation:
        """Return it as a request has it.

        Raises:
            ValueError: it says two things at once.
        """
        if self.delete and self.value is not None:
            raise ValueError("an operation must put or delete, not both")
        operation = kv_pb2.Operation(key=self.key, ttl_ms=milliseconds(self.ttl_s))
        condition = condition_of(self.version, self.expected)
        if condition is not None:
            operation.condition.CopyFrom(condition)
        if self.value is not None:
            operation.put = self.value
        elif self.delete:
            operation.delete = True
        else:
            operation.check = True
        return operation


def condition_of(version: int | None, expected: bytes | None) -> kv_pb2.Condition | None:
    """Return what must hold of a key; None: nothing.

    Raises:
        ValueError: both are given.
    """
    if version is not None and expected is not None:
        raise ValueError("give a version or a value, not both")
    if version is not None:
        return kv_pb2.Condition(version=version)
    return None if expected is None else kv_pb2.Condition(value=expected)


def milliseconds(time_s: float) -> int:
    """Return a time in milliseconds; more than none stays more than none."""
    return max(1, round(time_s * 1_000)) if time_s else 0


def item_of(item: kv_pb2.Item) -> Item:
    """Return the item of a response."""
    return Item(
        item.key,
        item.value,
        item.version,
        item.create_revision,
        item.modify_revision,
        item.expires_at_ms,
    )


def page_of(response: kv_pb2.ListResponse) -> Page:
    """Return the page of a response."""
    items = [item_of(item) for item in response.items]
    return Page(items, response.continuation, response.revision)


def put_of(response: kv_pb2.PutResponse) -> Written:
    """Return what became of a put."""
    current = item_of(response.current) if response.HasField("current") else None
    return Written(response.written, response.revision, response.version, current)


def swap_of(response: kv_pb2.CompareAndSetResponse) -> Written:
    """Return what became of a compare-and-set."""
    current = item_of(response.current) if response.HasField("current") else None
    return Written(response.swapped, response.revision, response.version, current)


def batch_of(response: kv_pb2.BatchResponse) -> BatchWritten:
    """Return what became of a batch."""
    current = item_of(response.current) if response.HasField("current") else None
    return BatchWritten(
        response.applied,
        response.revision,
        tuple(response.versions),
        response.failed_operation,
        current,
    )


def changes_of(response: kv_pb2.WatchResponse) -> Changes:
    """Return the changes of a response."""
    changes = [Change(ChangeKind(one.kind), item_of(one.item)) for one in response.changes]
    return Changes(response.revision, changes)


def table_of(table: kv_pb2.Table) -> TableInfo:
    """Return what a response says of a table."""
    return TableInfo(
        table.name.name,
        Engine(table.engine) if table.engine else None,
        table.revision,
        table.compacted_revision,
        table.key_count,
        table.byte_count,
        table.raft_group,
    )


def list_request(
    table: kv_pb2.TableName,
    *,
    prefix: bytes,
    begin: bytes,
    end: bytes,
    page_size: int,
    continuation: bytes,
    keys_only: bool,
    consistency: Consistency,
) -> kv_pb2.ListRequest:
    """Return the request of a page."""
    return kv_pb2.ListRequest(
        table=table,
        prefix=prefix,
        begin=begin,
        end=end,
        page_size=page_size,
        continuation=continuation,
        keys_only=keys_only,
        consistency=kv_pb2.Consistency.ValueType(consistency),
    )


def swap_request(
    table: kv_pb2.TableName,
    key: bytes,
    value: bytes | None,
    *,
    version: int | None,
    expected: bytes | None,
    ttl_s: float,
) -> kv_pb2.CompareAndSetRequest:
    """Return the request of a compare-and-set; value None deletes.

    Raises:
        ValueError: neither a version nor a value is expected, or both are.
    """
    condition = condition_of(version, expected)
    if condition is None:
        raise ValueError("give the expected version or value")
    request = kv_pb2.CompareAndSetRequest(
        table=table, key=key, expected=condition, ttl_ms=milliseconds(ttl_s)
    )
    if value is None:
        request.delete = True
    else:
        request.value = value
    return request


def restored(item: Item) -> kv_pb2.Operation:
    """Return the operation that writes an exported item again."""
    return kv_pb2.Operation(
        key=item.key, put=item.value, version=item.version, expires_at_ms=item.expires_at_ms
    )
