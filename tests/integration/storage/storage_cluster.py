"""Storage members in one process over real Angelia tcp, with a nameserver that does as told."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import AngeliaError, CallContext
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer
from strata_metadata import META_SERVICE, CachedMetaServicer, MetadataCache, WatchOptions
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row
from strata_storage.base.config import StorageConfig
from strata_storage.process import member as members
from strata_storage.process.app import NodeStores
from strata_storage.tiering.config import TierConfig
from strata_testing import until
from strata_testing.metadata_store import MemoryMetadataStore
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import batch_of, lease_of, pop_request, small_config

Response = TypeVar("Response", bound=Message)

_STORAGE = "/strata.storage.v1.StorageService/"
_OK = meta.MetaStatus(outcome=meta.META_OUTCOME_OK)
_NOT_NOW = meta.MetaStatus(outcome=meta.META_OUTCOME_CONFLICT, reason="not now")


class StubNameserver:
    """Rows that a test writes; nodes register, leaders report, everybody watches."""

    def __init__(self) -> None:
        options = WatchOptions(keepalive_ms=500)
        self.cache = MetadataCache(MemoryMetadataStore(), options, Metrics.disabled())
        self.server = TcpServer("127.0.0.1", 0)
        self.server.register(META_SERVICE, _StubServicer(self))
        self.endpoint = ""
        self.nodes: dict[str, meta.Node] = {}
        self.groups: dict[int, meta.RaftGroup] = {}
        self.overrides: dict[tuple[int, int], meta.QueueOverride] = {}
        self.topics: dict[int, meta.Topic] = {}
        # By the raft group that gives up slots.
        self.slot_moves: dict[int, meta.SlotMove] = {}
        self.slot_owners: dict[int, int] = {}
        # Reports of slots that are not taken now.
        self.refused_reports: set[str] = set()
        self.led: dict[int, str] = {}
        self.heartbeats: list[meta.HeartbeatRequest] = []
        self._replica_ids = itertools.count(101)

    async def start(self) -> None:
        self.endpoint = await self.server.start()

    async def stop(self) -> None:
        self.cache.close()
        await self.server.stop(0.1)

    def write(self, *changes: meta.Change) -> None:
        """Commit changes as one revision."""
        revision = self.cache.revision + 1
        for change in changes:
            if change.WhichOneof("row") == "raft_group":
                change.raft_group.revision = revision
                self.groups[change.raft_group.raft_group].revision = revision
            elif change.WhichOneof("row") == "topic":
                self.topics[change.topic.topic_id] = change.topic
            elif change.WhichOneof("row") == "slots":
                run = range(
                    change.slots.first_slot, change.slots.first_slot + change.slots.slot_count
                )
                self.slot_owners |= dict.fromkeys(run, change.slots.raft_group)
        response = meta.WatchResponse(revision=revision, changes=changes)
        self.cache.apply(response)

    def replica(self, node_id: str) -> meta.Replica:
        """Return a replica with an id that was never used."""
        return meta.Replica(replica_id=next(self._replica_ids), node_id=node_id)

    def make_group(self, raft_group: int, nodes: list[str], slots: list[tuple[int, int]]) -> None:
        """Make a raft group that owns slots."""
        replicas = [self.replica(node_id) for node_id in nodes]
        row = meta.RaftGroup(
            raft_group=raft_group,
            replicas=replicas,
            initial_replica_ids=[each.replica_id for each in replicas],
        )
        self.groups[raft_group] = row
        ranges = [
            meta.SlotRange(first_slot=first, slot_count=count, raft_group=raft_group)
            for first, count in slots
        ]
        self.write(meta.Change(raft_group=row), *(meta.Change(slots=each) for each in ranges))

    def move_replica(self, raft_group: int, from_node: str, to_node: str) -> None:
        """Want a replica elsewhere."""
        row = self.groups[raft_group]
        leaving = [each for each in row.replicas if each.node_id == from_node]
        staying = [each for each in row.replicas if each.node_id != from_node]
        added = [self.replica(to_node)] if to_node else []
        del row.replicas[:]
        row.replicas.extend([*staying, *added])
        row.leaving.extend(leaving)
        self.write(meta.Change(raft_group=row))

    def prefer(self, raft_group: int, node_id: str) -> None:
        """Want a leader."""
        self.groups[raft_group].preferred_leader_node_id = node_id
        self.write(meta.Change(raft_group=self.groups[raft_group]))

    def move_queue(self, topic_id: int, queue: int, destination: int, source: int) -> None:
        """Want a queue elsewhere."""
        row = self.overrides.get((topic_id, queue))
        if row is None:
            first = meta.Epoch(epoch=0, start_offset=0, raft_group=source)
            row = meta.QueueOverride(topic_id=topic_id, queue=queue, epochs=[first])
            self.overrides[topic_id, queue] = row
        row.moving_to = destination
        self.write(meta.Change(queue_override=row))

    def move_slots(self, slots: list[int], source: int, destination: int) -> None:
        """Want slots elsewhere."""
        row = self.slot_moves[source] = meta.SlotMove(
            from_raft_group=source,
            to_raft_group=destination,
            began_at_revision=self.cache.revision + 1,
            slots=slots,
        )
        self.write(meta.Change(slot_move=row))

    def take_revoked(self, request: meta.ReportSlotsRevokedRequest) -> None:
        row = self.slot_moves[request.from_raft_group]
        assert row.began_at_revision == request.began_at_revision
        for kept in request.kept:
            first = meta.Epoch(epoch=0, start_offset=0, raft_group=row.from_raft_group)
            override = meta.QueueOverride(topic_id=kept.topic_id, queue=kept.queue, epochs=[first])
            self.overrides.setdefault((kept.topic_id, kept.queue), override)
        slots = [slot for slot in request.slots if slot in row.slots]
        for slot in slots:
            row.slots.remove(slot)
            row.revoked_slots.append(slot)
        if slots:
            self.write(
                *(meta.Change(queue_override=each) for each in self.overrides.values()),
                *(
                    meta.Change(
                        slots=meta.SlotRange(
                            first_slot=slot, slot_count=1, raft_group=row.to_raft_group
                        )
                    )
                    for slot in slots
                ),
                meta.Change(slot_move=row),
            )

    def take_granted(self, request: meta.ReportSlotsGrantedRequest) -> None:
        row = self.slot_moves[request.from_raft_group]
        for slot in request.slots:
            if slot in row.revoked_slots:
                row.revoked_slots.remove(slot)
        is_over = not row.slots and not row.revoked_slots
        if is_over:
            del self.slot_moves[request.from_raft_group]
        self.write(meta.Change(slot_move=row, deleted=is_over))

    def take_heartbeat(self, request: meta.HeartbeatRequest) -> None:
        self.heartbeats.append(request)
        for led in request.led:
            self.led[led.raft_group] = request.node_id
            row = self.groups[led.raft_group]
            if led.membership.configuration_index < row.membership.configuration_index:
                continue
            before = row.SerializeToString(deterministic=True)
            row.membership.CopyFrom(led.membership)
            if led.settled_revision >= row.revision:
                members = {*led.membership.voters, *led.membership.learners}
                staying = [each for each in row.leaving if each.replica_id in members]
                del row.leaving[:]
                row.leaving.extend(staying)
            if row.SerializeToString(deterministic=True) != before:
                self.write(meta.Change(raft_group=row))


class _StubServicer(CachedMetaServicer):
    def __init__(self, stub: StubNameserver) -> None:
        super().__init__(stub.cache)
        self._stub = stub

    async def register_node(
        self, request: meta.RegisterNodeRequest, context: CallContext
    ) -> meta.RegisterNodeResponse:
        self._stub.nodes[request.node.node_id] = request.node
        self._stub.write(meta.Change(node=request.node))
        return meta.RegisterNodeResponse(status=_OK)

    async def heartbeat(
        self, request: meta.HeartbeatRequest, context: CallContext
    ) -> meta.HeartbeatResponse:
        self._stub.take_heartbeat(request)
        return meta.HeartbeatResponse(status=_OK)

    async def report_slots_revoked(
        self, request: meta.ReportSlotsRevokedRequest, context: CallContext
    ) -> meta.ReportSlotsRevokedResponse:
        if request.slots and "revoked" in self._stub.refused_reports:
            return meta.ReportSlotsRevokedResponse(status=_NOT_NOW)
        self._stub.take_revoked(request)
        return meta.ReportSlotsRevokedResponse(status=_OK)

    async def report_slots_granted(
        self, request: meta.ReportSlotsGrantedRequest, context: CallContext
    ) -> meta.ReportSlotsGrantedResponse:
        if "granted" in self._stub.refused_reports:
            return meta.ReportSlotsGrantedResponse(status=_NOT_NOW)
        self._stub.take_granted(request)
        return meta.ReportSlotsGrantedResponse(status=_OK)

    async def report_queue_moved(
        self, request: meta.ReportQueueMovedRequest, context: CallContext
    ) -> meta.ReportQueueMovedResponse:
        row = self._stub.overrides[request.topic_id, request.queue]
        if row.epochs[-1].epoch < request.opened.epoch:
            row.epochs.append(request.opened)
            row.moving_to = 0
            self._stub.write(meta.Change(queue_override=row))
        return meta.ReportQueueMovedResponse(status=_OK)

    async def confirm_rehashed(
        self, request: meta.ConfirmRehashedRequest, context: CallContext
    ) -> meta.ConfirmRehashedResponse:
        topic = self._stub.topics[request.topic_id]
        if topic.previous_queue_count and topic.queue_count == request.queue_count:
            topic.previous_queue_count = 0
            self._stub.write(meta.Change(topic=topic))
        return meta.ConfirmRehashedResponse(status=_OK, topic=topic)

    async def report_queue_drained(
        self, request: meta.ReportQueueDrainedRequest, context: CallContext
    ) -> meta.ReportQueueDrainedResponse:
        row = self._stub.overrides[request.topic_id, request.queue]
        while len(row.epochs) > 1 and row.epochs[0].epoch <= request.epoch:
            del row.epochs[0]
        self._stub.write(meta.Change(queue_override=row))
        return meta.ReportQueueDrainedResponse(status=_OK)


class MemberUnderTest:
    """One member with a simulated disk, so that it can lose power; or with real files."""

    def __init__(
        self, node_id: str, folder: Path, stub: StubNameserver, seed: int, *, real: bool
    ) -> None:
        self.node_id = node_id
        self.fatal: list[tuple[str, BaseException]] = []
        self.disk = SimulatedDisk(seed)
        self.store = MemoryStore()
        self.real = real
        self.endpoint = ""
        # 0: any free one.
        self.port = 0
        self.tier: TierConfig | None = None
        self._folder = folder
        self._stub = stub
        self._boots = itertools.count(seed * 1_000 + 1)
        self.member: members.StorageMember | None = None

    @property
    def node(self):  # type: ignore[no-untyped-def]  # noqa: ANN201 - StorageNode
        assert self.member is not None
        return self.member.app.node

    def _failed(self, name: str, failure: BaseException) -> None:
        self.fatal.append((name, failure))

    async def start(self, config: StorageConfig) -> None:
        server = TcpServer("127.0.0.1", self.port)
        self.member = members.StorageMember(
            config,
            members.MemberIdentity(self.node_id, next(self._boots)),
            self._folder,
            network=members.MemberNetwork([server], [self._stub.endpoint], TcpChannel),
            runtime=Runtime(SystemClock(), random.random, Metrics.disabled(), self._failed),
            options=members.MemberOptions(),
            stores=members.MemberStores(
                NodeStores() if self.real else NodeStores(self.disk, self.store)
            ),
            setup=members.MemberSetup(self.tier),
        )
        await self.member.start()
        self.endpoint = self.member.app.endpoint

    async def stop(self) -> None:
        member, self.member = self.member, None
        if member is not None:
            await member.stop(1.0)

    async def lose_power(self) -> None:
        """Stop at once; only what was synced at this moment is left for the next start.

        Nothing comes in or goes out from here on, so nobody is told of anything synced later.
        """
        assert self.member is not None
        peers = self.member.app._peers
        assert peers is not None
        peers.peering.servicer.detach()
        setattr(peers.peering.transport, "send", lambda *_: False)  # noqa: B010
        disk, store = self.disk.snapshot(1), self.store.after_crash()
        disk.power_loss()
        self.disk, self.store = disk, store
        member, self.member = self.member, None
        member._options = members.MemberOptions(hand_over_ms=0)
        await member.stop(0.0)


class ClusterUnderTest:
    """Members, their nameserver, and a client that finds leaders."""

    def __init__(
        self,
        folder: Path,
        *,
        config: StorageConfig | None = None,
        real: bool = False,
        tier: TierConfig | None = None,
    ) -> None:
        self.tier = tier
        self.stub = StubNameserver()
        self.members: dict[str, MemberUnderTest] = {}
        self.config = config or small_config()
        self._folder = folder
        self._real = real
        self._channels: dict[str, TcpChannel] = {}
        self._leaders: dict[int, str] = {}
        self._sequences = itertools.count(1)

    async def __aenter__(self) -> ClusterUnderTest:
        await self.stub.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.member is not None:
                # Shown with a failed test.
                print(member.node.status())
        for channel in self._channels.values():
            await channel.close()
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        await self.stub.stop()
        fatal = [each for member in self.members.values() for each in member.fatal]
        assert not fatal, fatal

    async def add(self, count: int) -> list[str]:
        """Start new members."""
        first = len(self.members) + 1
        names = [f"storage-{number}" for number in range(first, first + count)]
        for number, name in enumerate(names, first):
            folder = self._folder / name
            folder.mkdir()
            self.members[name] = MemberUnderTest(name, folder, self.stub, number, real=self._real)
            await self.start(name)
        return names

    async def start(self, node_id: str) -> None:
        self.members[node_id].tier = self.tier
        await self.members[node_id].start(self.config)

    # Client -------------------------------------------------------------------------------------

    def leader_of(self, raft_group: int) -> str | None:
        """Return the node that leads and is ready."""
        for node_id, member in self.members.items():
            if member.member is None or member.member._running is None:
                continue
            engine = member.node._engines.get(raft_group)
            if engine is not None and engine.leader is not None and engine.leader.ready:
                return node_id
        return None

    async def until_led(self, raft_group: int) -> str:
        await until(lambda: self.leader_of(raft_group))
        leader = self.leader_of(raft_group)
        assert leader is not None
        return leader

    async def call(
        self, raft_group: int, rpc: str, request: Message, response_type: type[Response]
    ) -> Response:
        """Call the leader, wherever it is, until it does not refuse for being none."""
        async with asyncio.timeout(60):
            while True:
                node_id = self.leader_of(raft_group)
                if node_id is not None:
                    try:
                        response = await self._channel(node_id).call(
                            _STORAGE + rpc, request, response_type, timeout_s=3.0
                        )
                    except AngeliaError:
                        pass
                    else:
                        if not _is_transient(response):
                            return response
                await asyncio.sleep(0.02)

    def _channel(self, node_id: str) -> TcpChannel:
        endpoint = self.members[node_id].endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = TcpChannel(endpoint)
        return self._channels[endpoint]

    async def append(
        self, raft_group: int, bodies: list[bytes], *, sequence: int | None = None, **part: object
    ) -> pb.GroupResult:
        """Append one part, repeated until it is answered."""
        number = sequence if sequence is not None else next(self._sequences)
        data = batch_of(bodies, **part)  # type: ignore[arg-type]
        request = pb.AppendRequest(
            broker_boot_id=1,
            batches=[pb.GroupBatch(raft_group=raft_group, sequence=number, batch=data)],
        )
        response = await self.call(raft_group, "Append", request, pb.AppendResponse)
        return response.results[0]

    async def pop(self, raft_group: int, *, queue: int = -1, **fields: object) -> pb.PopResponse:
        request = pop_request(**fields)
        request.raft_group, request.queue = raft_group, queue
        response = await self.call(raft_group, "Pop", request, pb.PopResponse)
        return response

    async def ack(self, raft_group: int, messages: list[pb.LeasedMessage]) -> list[int]:
        leases = [lease_of(message) for message in messages]
        request = pb.AckRequest(groups=[pb.GroupLeases(raft_group=raft_group, leases=leases)])
        response = await self.call(raft_group, "Ack", request, pb.AckResponse)
        return list(response.groups[0].outcomes)

    async def fetch(
        self, raft_group: int, queue: int, offset: int = 0, topic_id: int = 7
    ) -> pb.FetchResponse:
        request = pb.FetchRequest(
            raft_group=raft_group,
            topic_id=topic_id,
            queue=queue,
            offset=offset,
            max_messages=1_000,
        )
        response = await self.call(raft_group, "Fetch", request, pb.FetchResponse)
        return response

    # Looking inside -----------------------------------------------------------------------------

    def rows(self, node_id: str, raft_group: int) -> list[Row]:
        return list(self.members[node_id].node.engine(raft_group).machine.rows.all())

    def applied(self, raft_group: int) -> dict[str, int]:
        """Return node id -> applied index where the raft group is hosted."""
        return {
            node_id: member.node._engines[raft_group].machine.applied_index()
            for node_id, member in self.members.items()
            if member.member is not None and raft_group in member.node._engines
        }

    async def until_quiet(self, raft_group: int) -> None:
        """Wait until the wanted replicas are there, no other, and have applied the same."""
        row = self.stub.groups[raft_group]
        running = {name for name, member in self.members.items() if member.member is not None}
        wanted = {replica.node_id for replica in row.replicas} & running
        await until(lambda: set(self.applied(raft_group)) == wanted)
        for _ in range(2):
            await until(lambda: len(set(self.applied(raft_group).values())) == 1)
            await asyncio.sleep(0.05)

    async def check_rows_equal(self, raft_group: int) -> None:
        """All replicas have the same rows, byte for byte."""
        await self.until_quiet(raft_group)
        hosts = list(self.applied(raft_group))
        first = self.rows(hosts[0], raft_group)
        assert first
        for node_id in hosts[1:]:
            assert self.rows(node_id, raft_group) == first, f"{hosts[0]} and {node_id} differ"


def _is_transient(response: Message) -> bool:
    """Whether the call shall be made again: no leader, not ready, or a leader that lost it."""
    transient = (pb.OUTCOME_NOT_LEADER, pb.OUTCOME_NOT_READY, pb.OUTCOME_OVERLOADED)
    if isinstance(response, pb.AppendResponse):
        return response.results[0].refusal.outcome in transient
    if isinstance(response, pb.AckResponse):
        return response.groups[0].refusal.outcome in transient
    return response.refusal.outcome in transient  # type: ignore[attr-defined]


async def cluster_of(
    folder: Path,
    count: int,
    groups: int = 1,
    *,
    config: StorageConfig | None = None,
    real: bool = False,
    tier: TierConfig | None = None,
) -> AsyncIterator[ClusterUnderTest]:
    """Yield a cluster with raft groups on all of its members, led and ready."""
    async with ClusterUnderTest(folder, config=config, real=real, tier=tier) as cluster:
        names = await cluster.add(count)
        for number in range(groups):
            slots = [(0, 4096)] if groups == 1 else [(s, 1) for s in range(number, 4096, groups)]
            cluster.stub.make_group(number + 1, names, slots)
        for number in range(groups):
            await cluster.until_led(number + 1)
        yield cluster
