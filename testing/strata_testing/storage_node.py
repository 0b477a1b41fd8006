"""A storage node in a test: real parts unless given others, one handler, no sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

import google_crc32c
from google.protobuf.descriptor import ServiceDescriptor

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext, Server
from strata_mq.commands import OwnCommand, SlotGrant
from strata_mq.layout import BatchBuilder, OutgoingMessage, PartKey, text_hash
from strata_mq.slots import SLOT_COUNT
from strata_multiraft.peering import PeerIdentity, Peering
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_seglog.ports import Disk
from strata_state.ports import StateStore
from strata_storage.base.config import StorageConfig
from strata_storage.base.hosted import HostedGroup
from strata_storage.group.node_plugins import StoragePlugin
from strata_storage.process.app import NodePlace, NodeStores, Peers, StorageApp, StorageSetup
from strata_storage.rows.machine import GroupMachine
from strata_storage.servicers.storage import StorageServicer
from strata_storage.tiering.opening import TierSetup
from strata_storage.upkeep.retention import RetentionSource
from strata_testing import ManualClock, until

CONTEXT = CallContext(timeout_s=None)
TOPIC = pb.TopicRef(topic_id=7, slot_base=0, queue_count=4)
DEAD_LETTER_TOPIC_ID = 9
GROUP = 1
NODE = "node-1"
FIRST_REPLICA = 100

Handler = TypeVar("Handler")


def small_config(**changes: float) -> StorageConfig:
    """Return a configuration that takes little room."""
    small = {"log_segment_bytes": 8 * 1024 * 1024, "ballast_bytes": 0}
    return StorageConfig.model_validate(small | changes)


class LocalServer:
    """Keeps the handlers by the names of their services; tests call them directly."""

    def __init__(self) -> None:
        self.handlers: dict[str, object] = {}

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        self.handlers[service.name] = handler

    def handler(self, kind: type[Handler]) -> Handler:
        """Return what answers for `FooService`, given `FooServicer`: its methods, with refusals."""
        return cast("Handler", self.handlers[kind.__name__.removesuffix("r")])

    async def start(self) -> str:
        return "local"

    async def stop(self, grace_s: float) -> None:
        self.handlers.clear()


def node_under_test(
    folder: Path,
    *,
    clock: ManualClock | None = None,
    disk: Disk | None = None,
    store: StateStore | None = None,
    config: StorageConfig | None = None,
    raft_groups: tuple[int, ...] = (GROUP,),
    retention: RetentionSource | None = None,
    tier: TierSetup | None = None,
    plugins: Sequence[StoragePlugin] = (),
    metrics: Metrics | None = None,
) -> NodeUnderTest:
    """Return a node that is not started yet, whose raft groups own all slots between them.

    Args:
        folder: of its data.
        clock: None: one of its own.
        disk: None: files in the folder.
        store: None: RocksDB in the folder.
        config: None: `small_config`.
        raft_groups: that it hosts alone.
        retention: until when messages are kept; None: as the application has it.
        tier: None: there is none.
        plugins: what is loaded beside the core.
        metrics: None: nothing is counted.
    """
    node = NodeUnderTest(clock or ManualClock(), metrics or Metrics.disabled())
    node.app = lone_storage_app(
        config or small_config(),
        folder,
        node.server,
        runtime=Runtime(node.clock, random.random, node.metrics, node.on_fatal),
        raft_groups=raft_groups,
        setup=StorageSetup(retention, tier, plugins),
        stores=NodeStores(disk, store),
    )
    return node


def lone_storage_app(
    config: StorageConfig,
    folder: Path,
    server: Server,
    *,
    runtime: Runtime,
    raft_groups: Sequence[int] = (GROUP,),
    setup: StorageSetup | None = None,
    stores: NodeStores | None = None,
) -> StorageApp:
    """Return a storage node that is alone, without a nameserver.

    Args:
        config: the section `[storage]`.
        folder: of its data.
        server: where its services are registered.
        runtime: what it runs on.
        raft_groups: that it hosts; they own all slots between them.
        setup: what it has beside its core.
        stores: in place of files.
    """
    hosted = [
        HostedGroup(number, FIRST_REPLICA + number, {FIRST_REPLICA + number: NODE})
        for number in raft_groups
    ]
    peering = Peering(
        PeerIdentity(NODE, 1),
        directory=_OnlyHere(),
        clock=runtime.clock,
        metrics=runtime.metrics,
        on_fatal=runtime.on_fatal,
    )

    def grants_of(machine: GroupMachine) -> OwnCommand | None:
        ownership = machine.ownership
        if ownership.slots or ownership.revision:
            return None
        first, every = raft_groups.index(machine.raft_group), len(raft_groups)
        if every == 1:
            return OwnCommand([SlotGrant(0, SLOT_COUNT, True)])
        return OwnCommand([SlotGrant(slot, 1, True) for slot in range(first, SLOT_COUNT, every)])

    return StorageApp(
        config,
        NodePlace(NODE, folder, hosted),
        server,
        runtime=runtime,
        peers=Peers(peering, _OnlyHere().node_of, grants_of),
        setup=setup,
        stores=stores,
    )


class _OnlyHere:
    """Knows one node: all replicas are there."""

    def endpoint_of(self, node_id: str, /) -> str | None:
        return None

    def node_of(self, replica_id: int, /) -> str | None:
        return NODE


class NodeUnderTest:
    """A node that serves inside an `async with`; at its end nothing in it may have failed."""

    app: StorageApp

    def __init__(self, clock: ManualClock, metrics: Metrics) -> None:
        self.clock = clock
        self.metrics = metrics
        self.fatal: list[tuple[str, BaseException]] = []
        self.failed = asyncio.Event()
        self.server = LocalServer()
        self.sequence = 0

    def on_fatal(self, name: str, error: BaseException) -> None:
        self.fatal.append((name, error))
        self.failed.set()

    async def __aenter__(self) -> NodeUnderTest:
        await self.app.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.app.stop(1.0)
        assert not self.fatal, self.fatal

    @property
    def rpc(self) -> StorageServicer:
        return self.server.handler(StorageServicer)

    def gauges(self, name: str) -> dict[str, float]:
        """Return a gauge's values by their labels, as a scrape writes them."""
        self.metrics.read_gauges()
        lines = self.metrics.render().decode().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith(name)]
        return {series.removeprefix(name): float(value) for series, value in found}

    async def append(
        self, bodies: list[bytes], *, boot_id: int = 1, sequence: int | None = None, **part: object
    ) -> pb.GroupResult:
        """Append one part; return the one result."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        data = batch_of(bodies, **part)  # type: ignore[arg-type]
        request = pb.AppendRequest(
            broker_boot_id=boot_id,
            batches=[pb.GroupBatch(raft_group=GROUP, sequence=sequence, batch=data)],
        )
        response = await self.rpc.append(request, CONTEXT)
        return response.results[0]

    async def pop(self, **fields: object) -> pb.PopResponse:
        """Pop with defaults."""
        return await self.rpc.pop(pop_request(**fields), CONTEXT)

    async def until_parked(self, count: int) -> None:
        """Wait until so many pops of the one raft group wait for messages."""
        (engine,) = self.app.node.engines()
        await until(lambda: len(engine.leading().waiters) >= count)

    async def ack(self, *leases: pb.LeaseRef) -> pb.GroupOutcomes:
        """Ack leases of the one raft group."""
        request = pb.AckRequest(groups=[pb.GroupLeases(raft_group=GROUP, leases=leases)])
        return (await self.rpc.ack(request, CONTEXT)).groups[0]


def batch_of(
    bodies: list[bytes],
    *,
    topic_id: int = TOPIC.topic_id,
    queue: int = 0,
    ids: list[bytes] | None = None,
    tags: list[str] | None = None,
    message_groups: list[str] | None = None,
    keys: list[str] | None = None,
    queue_count: int = TOPIC.queue_count,
) -> bytes:
    """Build an append batch of one part."""
    builder = BatchBuilder(google_crc32c.value)
    messages = [
        OutgoingMessage(
            body,
            google_crc32c.value(body),
            text_hash(tags[at]) if tags else 0,
            text_hash(message_groups[at]) if message_groups else 0,
            ids[at] if ids else message_id(body),
            1,
            1_700_000_000_000,
            [text_hash(keys[at])] if keys else [],
        )
        for at, body in enumerate(bodies)
    ]
    builder.add(PartKey(topic_id, queue, TOPIC.slot_base, queue_count), messages)
    return builder.build()


_ids: dict[bytes, int] = {}


def message_id(body: bytes) -> bytes:
    """Return an id nobody had before."""
    _ids[body] = _ids.get(body, 0) + 1
    return b"\x01" + (hash((body, _ids[body])) % 2**128).to_bytes(16, "big")


def pop_request(**fields: object) -> pb.PopRequest:
    """Build a pop with defaults."""
    request = pb.PopRequest(
        raft_group=GROUP,
        consumer_group_id=5,
        topic=TOPIC,
        queue=-1,
        max_messages=32,
        invisible_ms=30_000,
        max_attempts=3,
        dead_letter_topic_id=DEAD_LETTER_TOPIC_ID,
        start=pb.START_POSITION_EARLIEST,
    )
    request.MergeFrom(pb.PopRequest(**fields))  # type: ignore[arg-type]
    return request


def lease_of(message: pb.LeasedMessage, consumer_group_id: int = 5) -> pb.LeaseRef:
    """Return the lease of a popped message."""
    return pb.LeaseRef(
        consumer_group_id=consumer_group_id,
        topic_id=TOPIC.topic_id,
        queue=message.queue,
        offset=message.offset,
        lease_number=message.lease_number,
        generation=message.generation,
        visible_at_ms=message.visible_at_ms,
    )
