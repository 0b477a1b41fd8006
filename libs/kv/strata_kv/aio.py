"""A client of key-value tables for asyncio.

    async with AsyncKvClient("127.0.0.1:8081") as client:
        positions = client.table("positions")
        written = await positions.put(b"source-1", b"0")
        await positions.compare_and_set(b"source-1", b"17", version=written.version)

Reads are repeated while a broker cannot be reached and time is left. Writes are not repeated: a
write whose answer is lost raises `KvUnknownOutcomeError`, since it may have been carried out.

`client`, the blocking client, is generated from this file (`make kv-client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from strata.kv.v1 import kv_pb2, kv_pb2_grpc
from strata_kv import model
from strata_kv.connecting import OPTIONS, PAUSE_S, WATCH_PAUSE_S, Metadata
from strata_kv.errors import KvCompactedError, error_of, is_worth_repeating
from strata_kv.model import (
    BatchWritten,
    Changes,
    Consistency,
    Engine,
    Item,
    Operation,
    Page,
    TableInfo,
    Written,
)

if TYPE_CHECKING:
    from strata.kv.v1.kv_pb2_grpc import KvServiceAsyncStub

Response = TypeVar("Response")


class AsyncKvClient:
    """Calls to one broker, on one event loop.

    Args:
        endpoint: `host:port` of any broker with the plugin.
        namespace: of all tables.
        timeout_s: of one call, its repeats included.
        channel: used instead of a plaintext one to the endpoint; closed by whoever made it.
        metadata: headers of every call.
    """

    def __init__(
        self,
        endpoint: str = "127.0.0.1:8081",
        *,
        namespace: str = "",
        timeout_s: float = 10.0,
        channel: grpc.aio.Channel | None = None,
        metadata: Callable[[], Metadata] = tuple,
    ) -> None:
        self._channel = channel or grpc.aio.insecure_channel(endpoint, OPTIONS)
        self._is_own_channel = channel is None
        self._stub = kv_pb2_grpc.KvServiceStub(self._channel)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._metadata = metadata

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._is_own_channel:
            await self._channel.close()

    def table(self, name: str) -> AsyncTable:
        """Return a table; it is made by its first write."""
        return AsyncTable(self, kv_pb2.TableName(namespace=self._namespace, name=name))

    async def create_table(self, name: str, engine: Engine = Engine.ROCKSDB) -> TableInfo:
        """Make a table with an engine; one that is there with the same one is fine.

        Raises:
            KvError: it was not made, or nobody knows.
        """
        request = kv_pb2.CreateTableRequest(
            table=kv_pb2.TableName(namespace=self._namespace, name=name),
            engine=kv_pb2.Engine.ValueType(engine),
        )
        response = await self.call(self._stub.CreateTable, request)
        return model.table_of(response.table)

    async def tables(self) -> list[str]:
        """Return the names of all tables.

        Raises:
            KvError: no answer.
        """
        request = kv_pb2.ListTablesRequest(namespace=self._namespace)
        response = await self.call(self._stub.ListTables, request)
        return [table.name for table in response.tables]

    @property
    def stub(self) -> KvServiceAsyncStub:
        """The generated stub."""
        return self._stub

    async def call(self, method: Callable[..., Awaitable[Response]], request: Any) -> Response:
        """Make a call that is not repeated.

        Raises:
            KvError: it failed.
        """
        try:
            return await method(request, timeout=self._timeout_s, metadata=self._metadata())
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from None

    async def read(self, method: Callable[..., Awaitable[Response]], request: Any) -> Response:
        """Make a call that changes nothing, again while a broker cannot be reached.

        Raises:
            KvError: it failed.
        """
        ends_s = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            left_s = ends_s - asyncio.get_running_loop().time()
            try:
                return await method(request, timeout=max(left_s, 0.001), metadata=self._metadata())
            except grpc.aio.AioRpcError as failure:
                if not is_worth_repeating(failure) or left_s <= PAUSE_S:
                    raise error_of(failure) from None
            await asyncio.sleep(PAUSE_S)

    def stream(self, method: Callable[..., Any], request: Any) -> Any:
        """Begin a stream; it has no time limit."""
        return method(request, metadata=self._metadata())


class AsyncTable:
    """One table. Every method raises `KvError` when the call fails (see `errors`)."""

    def __init__(self, client: AsyncKvClient, name: kv_pb2.TableName) -> None:
        self._client = client
        self._name = name

    async def put(
        self, key: bytes, value: bytes, *, ttl_s: float = 0, if_absent: bool = False
    ) -> Written:
        """Write an item; with `if_absent` only if the key is not there."""
        request = kv_pb2.PutRequest(
            table=self._name,
            key=key,
            value=value,
            ttl_ms=model.milliseconds(ttl_s),
            if_absent=if_absent,
        )
        return model.put_of(await self._client.call(self._client.stub.Put, request))

    async def get(self, key: bytes, consistency: Consistency = Consistency.LEADER) -> Item | None:
        """Return an item; None: there is no such key."""
        request = kv_pb2.GetRequest(
            table=self._name, key=key, consistency=kv_pb2.Consistency.ValueType(consistency)
        )
        response = await self._client.read(self._client.stub.Get, request)
        return model.item_of(response.item) if response.HasField("item") else None

    async def delete(self, key: bytes) -> bool:
        """Delete an item; return whether it was there."""
        request = kv_pb2.DeleteRequest(table=self._name, key=key)
        response = await self._client.call(self._client.stub.Delete, request)
        return response.deleted

    async def compare_and_set(
        self,
        key: bytes,
        value: bytes | None,
        *,
        version: int | None = None,
        expected: bytes | None = None,
        ttl_s: float = 0,
    ) -> Written:
        """Write an item (None: delete it) if it is as expected.

        Args:
            key: of the item.
            value: what it becomes.
            version: which one must be there; 0: none may be.
            expected: which value must be there; one of the two is given.
            ttl_s: how long the item stays; 0: forever.
        """
        request = model.swap_request(
            self._name, key, value, version=version, expected=expected, ttl_s=ttl_s
        )
        return model.swap_of(await self._client.call(self._client.stub.CompareAndSet, request))

    async def batch(self, operations: Sequence[Operation]) -> BatchWritten:
        """Carry out operations together, or none of them."""
        request = kv_pb2.BatchRequest(
            table=self._name, operations=[operation.message() for operation in operations]
        )
        return model.batch_of(await self._client.call(self._client.stub.Batch, request))

    async def page(
        self,
        prefix: bytes = b"",
        *,
        begin: bytes = b"",
        end: bytes = b"",
        page_size: int = 0,
        continuation: bytes = b"",
        keys_only: bool = False,
        consistency: Consistency = Consistency.LEADER,
    ) -> Page:
        """Return items in the order of their keys, as many as one answer holds."""
        request = model.list_request(
            self._name,
            prefix=prefix,
            begin=begin,
            end=end,
            page_size=page_size,
            continuation=continuation,
            keys_only=keys_only,
            consistency=consistency,
        )
        return model.page_of(await self._client.read(self._client.stub.List, request))

    async def list(
        self,
        prefix: bytes = b"",
        *,
        begin: bytes = b"",
        end: bytes = b"",
        keys_only: bool = False,
        consistency: Consistency = Consistency.LEADER,
    ) -> AsyncGenerator[Item, None]:
        """Iterate items in the order of their keys; each page is as of its own time."""
        continuation = b""
        while True:
            page = await self.page(
                prefix,
                begin=begin,
                end=end,
                continuation=continuation,
                keys_only=keys_only,
                consistency=consistency,
            )
            for item in page.items:
                yield item
            continuation = page.continuation
            if not continuation:
                return

    async def watch(
        self, prefix: bytes = b"", *, from_revision: int = 0
    ) -> AsyncGenerator[Changes, None]:
        """Iterate changes from a revision on (0: from now on), forever.

        The first one is empty: it says where the watch begins. It outlives brokers and leaders.

        Raises:
            KvCompactedError: the revision is not kept any more.
        """
        next_revision, is_first = from_revision, True
        while True:
            request = kv_pb2.WatchRequest(
                table=self._name, prefix=prefix, from_revision=next_revision
            )
            stream = self._client.stream(self._client.stub.Watch, request)
            try:
                async for response in stream:
                    if response.changes or is_first:
                        is_first = False
                        yield model.changes_of(response)
                    next_revision = response.revision + 1
            except grpc.aio.AioRpcError as failure:
                if failure.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise KvCompactedError(failure.details()) from None
                if not is_worth_repeating(failure):
                    raise error_of(failure) from None
            finally:
                stream.cancel()
            await asyncio.sleep(WATCH_PAUSE_S)

    async def export(self) -> AsyncGenerator[Item, None]:
        """Iterate all items as of one revision.

        Raises:
            KvUnknownOutcomeError: it was cut; what came so far is not all.
        """
        request = kv_pb2.ExportRequest(table=self._name)
        stream = self._client.stream(self._client.stub.Export, request)
        complete = False
        try:
            async for response in stream:
                complete = response.complete
                for item in response.items:
                    yield model.item_of(item)
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from None
        finally:
            stream.cancel()
        assert complete, "a stream that ends without an error is complete"

    async def restore(self, items: Sequence[Item]) -> BatchWritten:
        """Write items as they were exported, with their versions and ends."""
        request = kv_pb2.BatchRequest(table=self._name, operations=map(model.restored, items))
        return model.batch_of(await self._client.call(self._client.stub.Batch, request))

    async def info(self) -> TableInfo:
        """Return what is known of the table."""
        request = kv_pb2.GetTableRequest(table=self._name)
        response = await self._client.read(self._client.stub.GetTable, request)
        return model.table_of(response.table)

    async def drop(self) -> None:
        """Delete the table and its items."""
        request = kv_pb2.DeleteTableRequest(table=self._name)
        await self._client.call(self._client.stub.DeleteTable, request)
