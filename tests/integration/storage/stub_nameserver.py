"""A nameserver that does as a test tells it."""

from __future__ import annotations

import itertools

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.ports import CallContext
from strata_angelia.tcp_server import TcpServer
from strata_metadata import META_SERVICE, CachedMetaServicer, MetadataCache, WatchOptions
from strata_runtime.metrics import Metrics
from strata_testing.metadata_store import MemoryMetadataStore

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
