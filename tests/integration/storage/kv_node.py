"""A storage node with the plugin `kv` in a test: real parts, one raft group, no sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

from strata.kv.v1 import kv_pb2
from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_kv.machine import TableMachine
from strata_kv.options import TableOptions
from strata_seglog.ports import Disk
from strata_state.ports import StateStore
from strata_storage.base.config import StorageConfig
from strata_storage.kv.options import KvOptions
from strata_storage.kv.plugin import KvStoragePlugin
from strata_storage.kv.servicer import KvStorageServicer
from strata_testing import ManualClock
from strata_testing.storage_node import node_under_test

CONTEXT = CallContext(timeout_s=None)
GROUP = 1
TABLE = pb.TopicRef(topic_id=50, slot_base=10, queue_count=1)
_BOOT_IDS = count(100)
OTHER_TABLE = pb.TopicRef(topic_id=51, slot_base=11, queue_count=1)


class KvNode:
    """A node whose raft group owns all slots.

    Args:
        folder: of its data.
        clock: time; items end by it.
        options: limits of tables; None: the defaults.
        expiry_batch: items that one entry ends.
        plugin: False: it is started without the plugin.
        config, disk, store: as of the application.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: ManualClock | None = None,
        options: TableOptions | None = None,
        expiry_batch: int = 500,
        plugin: bool = True,
        config: StorageConfig | None = None,
        disk: Disk | None = None,
        store: StateStore | None = None,
    ) -> None:
        self._sequence = 0
        # A broker that starts anew counts anew, under another id.
        self._boot_id = next(_BOOT_IDS)
        tables = options or TableOptions()
        self._kv = KvStoragePlugin(
            KvOptions(tables=tables, expiry_interval_ms=5, expiry_batch=expiry_batch)
        )
        self._node = node_under_test(
            folder,
            clock=clock,
            config=config,
            disk=disk,
            store=store,
            plugins=[self._kv] if plugin else [],
        )
        self.app, self.clock = self._node.app, self._node.clock

    async def __aenter__(self) -> KvNode:
        await self._node.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._node.__aexit__()

    @property
    def rpc(self) -> KvStorageServicer:
        return self._node.server.handler(KvStorageServicer)

    @property
    def tables(self) -> TableMachine:
        """The applied tables."""
        return self._kv._group_of(GROUP).tables

    async def write(
        self,
        *operations: kv_pb2.Operation,
        table: pb.TopicRef = TABLE,
        engine: kv_pb2.Engine.ValueType = kv_pb2.ENGINE_UNSPECIFIED,
        boot_id: int | None = None,
        sequence: int | None = None,
    ) -> kv.TableWriteResult:
        """Write one request in a batch of its own; return its result."""
        self._sequence += 1
        request = kv.WriteRequest(
            raft_group=GROUP,
            broker_boot_id=self._boot_id if boot_id is None else boot_id,
            sequence=self._sequence if sequence is None else sequence,
            writes=[kv.TableWrite(table=table, operations=operations, engine=engine)],
        )
        response = await self.rpc.write(request, CONTEXT)
        if response.refusal.outcome:
            return kv.TableWriteResult(
                outcome=response.refusal.outcome, reason=response.refusal.reason
            )
        [result] = response.results
        return result

    async def put(self, key: bytes, value: bytes, **more: object) -> kv.TableWriteResult:
        """Put one item."""
        return await self.write(kv_pb2.Operation(key=key, put=value), **more)  # type: ignore[arg-type]

    async def items(self, table: pb.TopicRef = TABLE) -> dict[bytes, bytes]:
        """Return all items, as the leader has them."""
        request = kv.ScanRequest(raft_group=GROUP, table=table)
        response = await self.rpc.scan(request, CONTEXT)
        assert not response.refusal.outcome, response.refusal
        return {item.key: item.value for item in response.items}

    async def get(self, key: bytes, place: kv.ReadPlace | None = None) -> kv.ReadResponse:
        """Read one item."""
        request = kv.ReadRequest(
            raft_group=GROUP, place=place, keys=[kv.ReadKey(table=TABLE, key=key)]
        )
        return await self.rpc.read(request, CONTEXT)

    def follow(
        self, from_revision: int, prefix: bytes = b"", owner: kv.StreamOwner | None = None
    ) -> AsyncIterator[kv.FollowResponse]:
        """Follow changes."""
        request = kv.FollowRequest(
            raft_group=GROUP, table=TABLE, prefix=prefix, from_revision=from_revision, owner=owner
        )
        return self.rpc.follow(request, CONTEXT)
