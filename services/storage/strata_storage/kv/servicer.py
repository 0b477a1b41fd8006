"""`strata.kv.v1.KvStorageService`: protobuf to tables and back. No decision is made here.

Reads at any replica are as of an index that the leader gave (`ReadIndex`): what was acknowledged
before that is there. A replica whose rows are being replaced, or are damaged, answers no read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from strata.kv.v1 import kv_pb2
from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_kv.decider import fill_item
from strata_kv.model import ChangeKind
from strata_kv.names import QUEUE
from strata_kv.rows import ItemChange
from strata_mq.commands import DropKind
from strata_multiraft import NotLeader, Overloaded, ReadOnly
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout
from strata_state.ports import StateError
from strata_storage.base.disk_guard import DiskMark
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.group.node_plugins import PluginNode
from strata_storage.group.translation import topic_of
from strata_storage.kv.failures import refusal_of_row
from strata_storage.kv.group import KvGroup
from strata_storage.kv.options import KvOptions
from strata_storage.leading.proposer import refusal_of

_ITEM_BYTES = 64
"""Bytes that an item takes in an answer beside key and value, about."""
_LOOK_AGAIN_S = 5.0


class KvStorageServicer:
    """Handler for Angelia.

    Args:
        node: the raft groups.
        group_of: the tables of a raft group that is hosted.
        options: limits of answers.
        metrics: where it counts.
    """

    def __init__(
        self,
        node: PluginNode,
        group_of: Callable[[int], KvGroup],
        options: KvOptions,
        *,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._group_of = group_of
        self._options = options
        self._writes = metrics.counter("strata_kv_writes_total")
        self._reads = metrics.counter("strata_kv_reads_total")

    # Writes -------------------------------------------------------------------------------------

    async def write(self, request: kv.WriteRequest, context: CallContext) -> kv.WriteResponse:
        """Carry out a batch of requests."""
        engine = self._node.engine(request.raft_group)
        engine.leading()
        engine.check_disk(self._node.disk_guard, DiskMark.REFUSE_APPENDS)
        response = await self._group_of(request.raft_group).leading().write(request)
        applied = sum(result.applied for result in response.results)
        self._writes.add(applied, {"result": "applied"})
        if applied < len(response.results):
            self._writes.add(len(response.results) - applied, {"result": "not applied"})
        return response

    # Reads --------------------------------------------------------------------------------------

    async def read_index(
        self, request: kv.ReadIndexRequest, context: CallContext
    ) -> kv.ReadIndexResponse:
        """Return an index behind everything acknowledged."""
        response = kv.ReadIndexResponse()
        engine = self._node.engine(request.raft_group)
        await engine.barrier()
        response.index = engine.machine.applied_index()
        return response

    async def read(self, request: kv.ReadRequest, context: CallContext) -> kv.ReadResponse:
        """Read items."""
        response = kv.ReadResponse()
        group, engine = await self._place(request.raft_group, request.place)
        self._reads.add(len(request.keys))
        size_bytes = 0
        for wanted in request.keys:
            result = response.results.add(outcome=pb.OUTCOME_OK)
            try:
                if not _is_here(engine, wanted.table):
                    result.outcome = pb.OUTCOME_WRONG_GROUP
                    continue
                item = group.tables.item(wanted.table.topic_id, wanted.key)
            except StateError as failure:
                if len(request.keys) == 1:
                    raise refusal_of_row(failure) from failure
                # The caller asks for it again, alone, and is told then.
                result.outcome = pb.OUTCOME_OVERLOADED
                continue
            if item is None:
                continue
            size_bytes += len(item.data)
            if size_bytes > self._options.max_bytes and len(response.results) > 1:
                # The caller asks for it again, alone.
                result.outcome = pb.OUTCOME_OVERLOADED
                continue
            fill_item(result.item, wanted.key, item)
        return response

    async def scan(self, request: kv.ScanRequest, context: CallContext) -> kv.ScanResponse:
        """Read a range."""
        response = kv.ScanResponse()
        group, engine = await self._place(request.raft_group, request.place)
        _check_here(engine, request.table)
        options, table_id = self._options, request.table.topic_id
        max_items = min(request.max_items or options.max_items, options.max_items)
        max_bytes = min(request.max_bytes or options.max_bytes, options.max_bytes)
        response.revision = _revision(group, table_id)
        size_bytes = 0
        rows = group.tables.scan(table_id, request.begin, request.end, max_items + 1)
        for count, (key, item) in enumerate(rows):
            # A row is read with its value, also for its key only.
            size_bytes += _ITEM_BYTES + len(key) + item.value_bytes
            if count == max_items or (count and size_bytes > max_bytes):
                response.more = True
                break
            fill_item(response.items.add(), key, item, keys_only=request.keys_only)
        self._reads.add(len(response.items))
        return response

    async def describe(
        self, request: kv.DescribeRequest, context: CallContext
    ) -> kv.DescribeResponse:
        """Return what is known of a table; zeros: nothing was written to it."""
        response = kv.DescribeResponse()
        group, engine = await self._leading(request.raft_group)
        _check_here(engine, request.table)
        table = group.tables.table(request.table.topic_id)
        if table is not None:
            response.engine = kv_pb2.Engine.ValueType(table.engine)
            response.revision = table.revision
            response.compacted_revision = table.compacted_revision
            response.key_count = table.key_count
            response.byte_count = table.byte_count
        return response

    # Streams ------------------------------------------------------------------------------------

    async def follow(
        self, request: kv.FollowRequest, context: CallContext
    ) -> AsyncIterator[kv.FollowResponse]:
        """Tell changes until the leader goes, or the caller."""
        group, engine = await self._leading(request.raft_group)
        leader, table_id = group.leading(), request.table.topic_id
        # Before the first answer: the caller goes on from its revision, wherever the table is.
        _check_here(engine, request.table)
        with group.following(table_id, request.owner) as changed:
            revision = _revision(group, table_id)
            if request.from_revision:
                # A revision to come is waited for, as in etcd.
                revision = request.from_revision - 1
            yield kv.FollowResponse(revision=revision)
            while True:
                changed.clear()
                _check_here(engine, request.table)
                group.check_leads(leader)
                for response in self._news(group, table_id, revision, request.prefix):
                    yield response
                    if response.oldest_revision:
                        return
                    revision = response.revision
                if revision >= _revision(group, table_id):
                    await _woken(changed, is_there=group.tables.table(table_id) is not None)

    def _news(
        self, group: KvGroup, table_id: int, revision: int, prefix: bytes
    ) -> list[kv.FollowResponse]:
        """Return changes behind a revision, one response per revision; not more than a few."""
        table = group.tables.table(table_id)
        if table is not None and revision < table.compacted_revision:
            return [kv.FollowResponse(oldest_revision=table.compacted_revision + 1)]
        responses: list[kv.FollowResponse] = []
        size_bytes = 0
        for changed_at, change in group.tables.changes(table_id, revision + 1):
            if not responses or responses[-1].revision != changed_at:
                if size_bytes > self._options.max_bytes or len(responses) > self._options.max_items:
                    break
                responses.append(kv.FollowResponse(revision=changed_at))
            # A change counts when it is read, wanted or not.
            size_bytes += _ITEM_BYTES + len(change.key) + len(change.value)
            if change.key.startswith(prefix):
                _fill_change(responses[-1].changes.add(), changed_at, change)
        return responses

    async def dump(
        self, request: kv.DumpRequest, context: CallContext
    ) -> AsyncIterator[kv.DumpResponse]:
        """Tell all items as they are now."""
        group, engine = await self._leading(request.raft_group)
        _check_here(engine, request.table)
        with group.dumps.holding(request.owner):
            table_id = request.table.topic_id
            revision = _revision(group, table_id)
            rows = group.tables.scan(table_id, b"", b"")
            response = kv.DumpResponse(revision=revision)
            size_bytes = 0
            for key, item in rows:
                fill_item(response.items.add(), key, item)
                size_bytes += len(key) + item.value_bytes
                if (
                    size_bytes >= self._options.max_bytes // 4
                    or len(response.items) >= self._options.max_items
                ):
                    yield response
                    response, size_bytes = kv.DumpResponse(revision=revision), 0
            response.complete = True
            yield response

    # Steps --------------------------------------------------------------------------------------

    async def _place(self, raft_group: int, place: kv.ReadPlace) -> tuple[KvGroup, GroupEngine]:
        """Return tables that show what the caller wants to see.

        Raises:
            Refused: OUTCOME_NOT_LEADER, OUTCOME_NOT_READY, OUTCOME_OVERLOADED.
        """
        if not place.any_replica:
            return await self._leading(raft_group)
        engine = self._node.engine(raft_group)
        replica = self._node.replicas()[raft_group]
        if not replica.read_only and not replica.installing:
            try:
                await replica.applied(place.index)
            except (NotLeader, Overloaded, ReadOnly) as error:
                raise refusal_of(error) from error
        # Again: a snapshot may have begun meanwhile.
        if replica.read_only or replica.installing:
            raise Refused(pb.OUTCOME_NOT_READY, "the rows of this replica are not complete yet")
        return self._group_of(raft_group), engine

    async def _leading(self, raft_group: int) -> tuple[KvGroup, GroupEngine]:
        engine = self._node.engine(raft_group)
        await engine.barrier()
        group = self._group_of(raft_group)
        group.leading()
        return group, engine


async def _woken(changed: asyncio.Event, *, is_there: bool) -> None:
    """Wait until a table changed.

    A table without a write has no row, and may go to another raft group with its slot: then nothing
    here tells of it, and the caller looks again after a while.
    """
    if is_there:
        await changed.wait()
        return
    with suppress(TimeoutError):
        async with Timeout(_LOOK_AGAIN_S):
            await changed.wait()


def _revision(group: KvGroup, table_id: int) -> int:
    table = group.tables.table(table_id)
    return 0 if table is None else table.revision


def _is_here(engine: GroupEngine, table: pb.TopicRef) -> bool:
    machine = engine.machine
    if (DropKind.TOPIC, table.topic_id) in machine.dropped:
        return False
    if (table.topic_id, QUEUE) in machine.moves:
        # It was empty when it was sealed; its row here is for epochs with messages.
        return False
    return machine.serves_queue(topic_of(table), QUEUE)


def _check_here(engine: GroupEngine, table: pb.TopicRef) -> None:
    if not _is_here(engine, table):
        raise Refused(pb.OUTCOME_WRONG_GROUP, "the table is not in this raft group")


def _fill_change(target: kv_pb2.Change, revision: int, change: ItemChange) -> None:
    target.kind = kv_pb2.ChangeKind.ValueType(change.kind)
    target.item.key, target.item.modify_revision = change.key, revision
    if change.kind == ChangeKind.PUT:
        target.item.value = change.value
        target.item.version = change.version
        target.item.create_revision = change.create_revision
        target.item.expires_at_ms = change.expires_at_ms
