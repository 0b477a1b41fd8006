"""`strata.kv.v1.KvService`: tables for clients. It only translates; failures are statuses.

Single puts, deletes and compare-and-sets are batches of one operation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from contextvars import ContextVar
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata_angelia.methods import Rpc, rpcs_of
from strata_angelia.ports import AngeliaError
from strata_broker.access.guard import principal_of
from strata_broker.access.principals import Principal, current_principal
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.base.shares import CallShares, Owner, all_owners_of, most_each
from strata_broker.base.table_config import KvSection
from strata_broker.kv.reads import Reads
from strata_broker.kv.streams import Streams
from strata_broker.kv.tables import Tables
from strata_broker.kv.writes import SERVICE as STORAGE_SERVICE
from strata_broker.kv.writes import Writes
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import operator_of, time_for
from strata_broker.receives.receive import topic_ref
from strata_broker.servicers.audit import audited, audited_call
from strata_broker.servicers.errors import call_error
from strata_broker.servicers.plugins import PluginParts
from strata_edge.ports import CallError, CallInfo, ServerStreamHandler, UnaryHandler
from strata_kv.names import table_of
from strata_metadata.errors import MetaRefused
from strata_mq.access import Action, ResourceKind
from strata_mq.layout import prefix_end
from strata_mq.requests import Code, RequestError

_SERVICE = kv_pb2.DESCRIPTOR.services_by_name["KvService"]
SERVICE: str = _SERVICE.full_name

Request = TypeVar("Request", bound=Message)

_FAILURES = (RequestError, MetaRefused, AngeliaError)
# The audit trail has changes of tables; items are content, as messages are.
_CHANGES = ("CreateTable", "DeleteTable")

_caller: ContextVar[Audited] = ContextVar("caller of a table")
_principal: ContextVar[Principal] = ContextVar("principal of a stream of a table")
_owners: ContextVar[tuple[Owner, ...]] = ContextVar("owners of a stream of a table")


class KvServicer:
    """See the module docstring."""

    def __init__(
        self,
        parts: PluginParts,
        tables: Tables,
        writes: Writes,
        *,
        reads: Reads,
        streams: Streams,
        shares: CallShares,
        config: KvSection,
    ) -> None:
        self._shares = shares
        most = most_each(config.max_watches_per_client, config.max_watches_per_address)
        self._stream_shares = CallShares("streams of tables", most, metrics=parts.calls.metrics)
        most = most_each(config.max_exports_per_client, config.max_exports_per_address)
        self._export_shares = CallShares("exports of tables", most, metrics=parts.calls.metrics)
        self._cluster = parts.cluster
        self._calls = parts.calls
        self._audit = parts.audit
        self._tables = tables
        self._writes = writes
        self._reads = reads
        self._streams = streams
        self._config = config

    def register(self, edge: Methods) -> None:
        """Serve every RPC on an edge."""
        for rpc in rpcs_of(_SERVICE, self):
            if rpc.streaming:
                edge.add_server_stream(rpc.path, self._streaming(rpc))
            else:
                edge.add_unary(rpc.path, self._answering(rpc))

    # Items --------------------------------------------------------------------------------------

    async def put(self, request: kv_pb2.PutRequest, deadline_s: float) -> kv_pb2.PutResponse:
        """Write an item."""
        operation = kv_pb2.Operation(key=request.key, put=request.value, ttl_ms=request.ttl_ms)
        if request.if_absent:
            operation.condition.version = 0
        topic = await self._tables.for_write(request.table, _use("Put"))
        result = await self._writes.write(topic, (operation,), deadline_s)
        if not result.applied:
            return kv_pb2.PutResponse(revision=result.revision, current=_current(result))
        return kv_pb2.PutResponse(
            written=True, revision=result.revision, version=result.versions[0]
        )

    async def get(self, request: kv_pb2.GetRequest, deadline_s: float) -> kv_pb2.GetResponse:
        """Read an item."""
        topic = self._tables.find(request.table)
        if topic is None:
            return kv_pb2.GetResponse()
        item = await self._reads.get(topic, request.key, request.consistency, deadline_s)
        return kv_pb2.GetResponse(item=item)

    async def delete(
        self, request: kv_pb2.DeleteRequest, deadline_s: float
    ) -> kv_pb2.DeleteResponse:
        """Delete an item."""
        topic = self._tables.find(request.table)
        if topic is None:
            return kv_pb2.DeleteResponse()
        there = kv_pb2.Operation(key=request.key, delete=True)
        result = await self._writes.write(topic, (there,), deadline_s)
        return kv_pb2.DeleteResponse(deleted=result.changed, revision=result.revision)

    async def compare_and_set(
        self, request: kv_pb2.CompareAndSetRequest, deadline_s: float
    ) -> kv_pb2.CompareAndSetResponse:
        """Change an item if it is as expected."""
        if request.expected.WhichOneof("what") is None:
            raise RequestError(Code.BAD_REQUEST, "nothing is expected: name a version or a value")
        operation = kv_pb2.Operation(
            key=request.key, condition=request.expected, ttl_ms=request.ttl_ms
        )
        match request.WhichOneof("change"):
            case "value":
                operation.put = request.value
            case "delete":
                operation.delete = True
            case _:
                raise RequestError(
                    Code.BAD_REQUEST, "no new value: name a value or delete the item"
                )
        topic = await self._tables.for_write(request.table, _use("CompareAndSet"))
        result = await self._writes.write(topic, (operation,), deadline_s)
        response = kv_pb2.CompareAndSetResponse(swapped=result.applied, revision=result.revision)
        if result.applied:
            response.version = result.versions[0]
        elif result.HasField("current"):
            response.current.CopyFrom(result.current)
        return response

    async def batch(self, request: kv_pb2.BatchRequest, deadline_s: float) -> kv_pb2.BatchResponse:
        """Carry out operations together."""
        topic = await self._tables.for_write(request.table, _use("Batch"))
        result = await self._writes.write(topic, request.operations, deadline_s)
        return kv_pb2.BatchResponse(
            applied=result.applied,
            revision=result.revision,
            failed_operation=result.failed_operation,
            current=_current(result),
            versions=result.versions,
        )

    async def list(self, request: kv_pb2.ListRequest, deadline_s: float) -> kv_pb2.ListResponse:
        """Read a page."""
        topic = self._tables.find(request.table)
        if topic is None:
            return kv_pb2.ListResponse()
        begin = max(request.prefix, request.begin, request.continuation)
        ends = [end for end in (prefix_end(request.prefix), request.end) if end]
        end = min(ends, default=b"")
        if end and begin >= end:
            return kv_pb2.ListResponse()
        limit = self._config.max_list_items
        scan = kv_storage_pb2.ScanRequest(
            table=topic_ref(topic),
            begin=begin,
            end=end,
            max_items=min(request.page_size or limit, limit),
            keys_only=request.keys_only,
        )
        page = await self._reads.scan(topic, scan, request.consistency, deadline_s)
        response = kv_pb2.ListResponse(items=page.items, revision=page.revision)
        if page.more:
            # The smallest key behind the last one.
            response.continuation = page.items[-1].key + b"\0"
        return response

    # Tables -------------------------------------------------------------------------------------

    async def create_table(
        self, request: kv_pb2.CreateTableRequest, deadline_s: float
    ) -> kv_pb2.CreateTableResponse:
        """Create a table; an existing table with the same engine is fine."""
        if self._tables.find(request.table) is None:
            await self._tables.create(request.table)
        topic = self._tables.get(request.table)
        await self._writes.write(topic, (), deadline_s, request.engine)
        table = await self._describe(topic, deadline_s)
        if request.engine not in (kv_pb2.ENGINE_UNSPECIFIED, table.engine):
            engine = kv_pb2.Engine.Name(table.engine)
            raise RequestError(
                Code.PRECONDITION_FAILED, f"table {request.table.name} exists with {engine}"
            )
        return kv_pb2.CreateTableResponse(table=table)

    async def get_table(
        self, request: kv_pb2.GetTableRequest, deadline_s: float
    ) -> kv_pb2.GetTableResponse:
        """Show a table."""
        table = await self._describe(self._tables.get(request.table), deadline_s)
        return kv_pb2.GetTableResponse(table=table)

    async def list_tables(
        self, request: kv_pb2.ListTablesRequest, deadline_s: float
    ) -> kv_pb2.ListTablesResponse:
        """List the tables of a namespace."""
        names = self._tables.names(request.namespace)
        return kv_pb2.ListTablesResponse(
            tables=(
                kv_pb2.TableName(namespace=request.namespace, name=name)
                for name in names
                if current_principal().may_see(ResourceKind.TABLE, (request.namespace, name))
            )
        )

    async def delete_table(
        self, request: kv_pb2.DeleteTableRequest, deadline_s: float
    ) -> kv_pb2.DeleteTableResponse:
        """Delete a table and its items."""
        await self._tables.delete(request.table)
        return kv_pb2.DeleteTableResponse()

    async def _describe(self, topic: TopicRow, deadline_s: float) -> kv_pb2.Table:
        async def at(raft_group: int) -> kv_pb2.Table:
            found = await self._cluster.storage.client.call(
                raft_group,
                STORAGE_SERVICE + "Describe",
                kv_storage_pb2.DescribeRequest(raft_group=raft_group, table=topic_ref(topic)),
                kv_storage_pb2.DescribeResponse,
                timeout_s=deadline_s - self._calls.clock.monotonic_s(),
            )
            name = table_of(topic.name) or topic.name
            return kv_pb2.Table(
                name=kv_pb2.TableName(namespace=topic.namespace, name=name),
                table_id=topic.topic_id,
                raft_group=raft_group,
                engine=found.engine,
                revision=found.revision,
                compacted_revision=found.compacted_revision,
                key_count=found.key_count,
                byte_count=found.byte_count,
            )

        return await self._tables.at_raft_group(topic, deadline_s, at)

    # Streams ------------------------------------------------------------------------------------

    async def watch(
        self, request: kv_pb2.WatchRequest, deadline_s: float
    ) -> AsyncGenerator[kv_pb2.WatchResponse, None]:
        """Stream changes; a table that is not there is created for those who may write it."""
        name = request.table.namespace, request.table.name
        if _principal.get().may(ResourceKind.TABLE, name, Action.UPDATE):
            topic = await self._tables.for_write(request.table, _use("Watch"))
        else:
            topic = self._tables.get(request.table)
        changes = self._streams.watch(topic, request.prefix, request.from_revision, _owners.get())
        async with aclosing(changes):
            async for response in changes:
                yield response

    async def export(
        self, request: kv_pb2.ExportRequest, deadline_s: float
    ) -> AsyncGenerator[kv_pb2.ExportResponse, None]:
        """Stream all items."""
        topic = self._tables.get(request.table)
        owners = _owners.get()
        with self._export_shares.holding(owners):
            async with aclosing(self._streams.export(topic, deadline_s, owners)) as parts:
                async for response in parts:
                    yield response

    # On the edge --------------------------------------------------------------------------------

    def _answering(self, rpc: Rpc) -> UnaryHandler:
        async def answer(data: bytes, info: CallInfo) -> bytes:
            request = _parsed(rpc.request_type, data)
            _caller.set(audited(info))
            try:
                with (
                    self._shares.holding(_owners_of(info), len(data)),
                    self._audited(rpc, request, info),
                ):
                    response = cast("Message", await rpc.function(request, self._deadline_s(info)))
            except _FAILURES as failure:
                raise call_error(failure) from failure
            return response.SerializeToString()

        return answer

    def _streaming(self, rpc: Rpc) -> ServerStreamHandler:
        async def answer(data: bytes, info: CallInfo) -> AsyncIterator[bytes]:
            request = _parsed(rpc.request_type, data)
            _caller.set(audited(info))
            _principal.set(principal_of(info))
            owners = _owners_of(info)
            _owners.set(owners)
            try:
                with self._stream_shares.holding(owners):
                    async with aclosing(rpc.function(request, self._deadline_s(info))) as responses:
                        async for response in responses:
                            yield response.SerializeToString()
            except _FAILURES as failure:
                raise call_error(failure) from failure

        return answer

    def _audited(self, rpc: Rpc, request: Message, info: CallInfo) -> AbstractContextManager[None]:
        if rpc.name in _CHANGES:
            return audited_call(self._audit, rpc.name, request, info)
        return nullcontext()

    def _deadline_s(self, info: CallInfo) -> float:
        """Return the end of a call's time, by the monotonic clock."""
        config = self._calls.config
        timeout_s = time_for(
            info.time_left_s(), self._config.timeout_ms / 1000, config.calls.max_timeout_ms / 1000
        )
        return self._calls.clock.monotonic_s() + timeout_s


def _use(rpc: str) -> FirstUse:
    """Return the use of a table by the call that is served in this context."""
    return FirstUse(_caller.get(), rpc)


def _owners_of(info: CallInfo) -> tuple[Owner, ...]:
    return all_owners_of(operator_of(info.metadata).client_id, info.peer)


def _parsed(request_type: type[Request], data: bytes) -> Request:
    try:
        return parse(request_type, data)
    except DecodeError as error:
        raise CallError("INVALID_ARGUMENT", str(error)) from error


def _current(result: kv_storage_pb2.TableWriteResult) -> kv_pb2.Item | None:
    return result.current if result.HasField("current") else None
