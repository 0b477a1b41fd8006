"""A nameserver in memory: small, real, and strict about what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import google_crc32c
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import UNAVAILABLE, UNKNOWN_METHOD, AngeliaError
from strata_mq.slots import slot_base, slot_of, striped_slots

RAFT_GROUPS = (1, 2)
NODE = "storage-a"
_KEEPALIVE_S = 0.5
OK = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)


class FakeMeta:
    """`strata.meta.v1` over one dict of rows and a list of watchers."""

    def __init__(self, storage_nodes: Sequence[str] = (NODE,)) -> None:
        self.revision = 0
        self.rows: list[meta_pb2.Change] = []
        # No call is answered and no watch is opened while it is down.
        self.down = False
        self.watchers: list[asyncio.Queue[meta_pb2.WatchResponse | None]] = []
        self.calls: list[str] = []
        self.nodes: set[str] = set()
        self.next_id = 100
        self.slots = striped_slots(RAFT_GROUPS)
        for raft_group in RAFT_GROUPS:
            row = meta_pb2.RaftGroup(raft_group=raft_group, broker_name=f"strata-{raft_group}")
            for number, node_id in enumerate(storage_nodes):
                row.replicas.add(replica_id=10 * number + raft_group, node_id=node_id)
            self.put(meta_pb2.Change(raft_group=row))
        for node_id in storage_nodes:
            node = meta_pb2.Node(
                node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, endpoints=[f"inproc:{node_id}"]
            )
            self.put(meta_pb2.Change(node=node))
        for slot, owner in enumerate(self.slots):
            run = meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=owner)
            self.put(meta_pb2.Change(slots=run))

    def put(self, *changes: meta_pb2.Change) -> None:
        """Commit rows, a revision each, and tell the watchers all at once."""
        self.revision += len(changes)
        self.rows.extend(changes)
        for watcher in self.watchers:
            watcher.put_nowait(meta_pb2.WatchResponse(revision=self.revision, changes=changes))

    def add_topic(
        self,
        name: str,
        kind: meta_pb2.TopicType.ValueType = meta_pb2.TOPIC_TYPE_NORMAL,
        *,
        namespace: str = "",
        queue_count: int = 4,
    ) -> meta_pb2.Topic:
        """Make a topic with homes, as the nameserver does."""
        self.next_id += 1
        base = slot_base(namespace, name, google_crc32c.value)
        topic = meta_pb2.Topic(
            topic_id=self.next_id,
            namespace=namespace,
            name=name,
            type=kind,
            queue_count=0 if kind == meta_pb2.TOPIC_TYPE_DEAD_LETTER else queue_count,
            slot_base=base,
            revision=self.revision + 1,
        )
        for raft_group in RAFT_GROUPS:
            queues = [
                queue
                for queue in range(topic.queue_count)
                if self.slots[slot_of(base, queue)] == raft_group
            ]
            if queues:
                topic.homes.add(raft_group=raft_group, queues=queues)
        self.put(meta_pb2.Change(topic=topic))
        return topic

    def grow_topic(self, name: str, queue_count: int) -> meta_pb2.Topic:
        """Give a topic with message groups more queues, as the nameserver does."""
        topic: meta_pb2.Topic = self._last("topic", name=name)
        topic.previous_queue_count, topic.queue_count = topic.queue_count, queue_count
        topic.updated_at_ms = topic.created_at_ms + 1
        self.put(meta_pb2.Change(topic=topic))
        return topic

    def delete_topic(self, namespace: str, name: str) -> bool:
        """Delete a topic and leave its tombstone, in one change; False: there is none."""
        rows = [change for change in self.rows if change.topic.name == name]
        rows = [change for change in rows if change.topic.namespace == namespace]
        if not rows or rows[-1].deleted:
            return False
        tombstone = meta_pb2.Tombstone(
            kind=meta_pb2.TOMBSTONE_KIND_TOPIC, id=rows[-1].topic.topic_id, name=name
        )
        gone = meta_pb2.Topic(namespace=namespace, name=name)
        self.put(
            meta_pb2.Change(tombstone=tombstone),
            meta_pb2.Change(deleted=True, topic=gone),
        )
        return True

    def add_group(self, wanted: meta_pb2.ConsumerGroup) -> meta_pb2.ConsumerGroup:
        """Make a consumer group with its dead-letter topic."""
        dead_letter = self.add_topic(
            f"%DLQ%{wanted.name}",
            meta_pb2.TOPIC_TYPE_DEAD_LETTER,
            namespace=wanted.namespace,
        )
        self.next_id += 1
        group = meta_pb2.ConsumerGroup()
        group.CopyFrom(wanted)
        group.consumer_group_id = self.next_id
        group.dead_letter_topic_id = dead_letter.topic_id
        group.revision = self.revision + 1
        self.put(meta_pb2.Change(consumer_group=group))
        return group

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """See `strata_angelia.ports.Channel`."""
        rpc = method.rpartition("/")[2]
        self.calls.append(rpc)
        if self.down:
            raise AngeliaError(UNAVAILABLE, "the nameserver is down")
        match request:
            case meta_pb2.CreateTopicRequest(topic=topic):
                if self._find("topic", topic.namespace, topic.name):
                    return _refusal(response_type, meta_pb2.META_OUTCOME_ALREADY_EXISTS, "exists")
                made = self.add_topic(
                    topic.name,
                    topic.type,
                    namespace=topic.namespace,
                    queue_count=topic.queue_count or 8,
                )
                return meta_pb2.CreateTopicResponse(status=OK, topic=made)
            case meta_pb2.CreateConsumerGroupRequest(consumer_group=group):
                if self._find("consumer_group", group.namespace, group.name):
                    return _refusal(response_type, meta_pb2.META_OUTCOME_ALREADY_EXISTS, "exists")
                return meta_pb2.CreateConsumerGroupResponse(
                    status=OK, consumer_group=self.add_group(group)
                )
            case meta_pb2.DeleteTopicRequest(namespace=namespace, name=name):
                if not self.delete_topic(namespace, name):
                    return _refusal(response_type, meta_pb2.META_OUTCOME_NOT_FOUND, "no topic")
                return meta_pb2.DeleteTopicResponse(status=OK)
            case meta_pb2.RegisterNodeRequest(node=node):
                self.nodes.add(node.node_id)
                self.put(meta_pb2.Change(node=node))
                return meta_pb2.RegisterNodeResponse(status=OK)
            case meta_pb2.HeartbeatRequest(node_id=node_id):
                if node_id not in self.nodes:
                    return _refusal(response_type, meta_pb2.META_OUTCOME_NOT_FOUND, "no node")
                return meta_pb2.HeartbeatResponse(status=OK)
            case meta_pb2.RemoveNodeRequest(node_id=node_id):
                self.nodes.discard(node_id)
                self.put(meta_pb2.Change(deleted=True, node=meta_pb2.Node(node_id=node_id)))
                return meta_pb2.RemoveNodeResponse(status=OK)
        return self._change_rows(method, request)

    def _create_topics(self, topics: Iterable[meta_pb2.Topic]) -> meta_pb2.CreateTopicsResponse:
        response = meta_pb2.CreateTopicsResponse(status=OK)
        for position, topic in enumerate(topics):
            if self._find("topic", topic.namespace, topic.name):
                exists = meta_pb2.META_OUTCOME_ALREADY_EXISTS
                response.failures.add(position=position, outcome=exists, reason="exists")
                continue
            made = self.add_topic(
                topic.name,
                topic.type,
                namespace=topic.namespace,
                queue_count=topic.queue_count or 8,
            )
            response.created, response.revision = response.created + 1, made.revision
        return response

    def _change_rows(self, method: str, request: Message) -> Message:
        match request:
            case meta_pb2.CreateTopicsRequest(topics=topics):
                return self._create_topics(topics)
            case meta_pb2.ConfirmDroppedRequest(kind=what, id=dropped_id):
                done = meta_pb2.Tombstone(kind=what, id=dropped_id, done=True)
                self.put(meta_pb2.Change(tombstone=done))
                return meta_pb2.ConfirmDroppedResponse(status=OK)
            case meta_pb2.ConfirmRehashedRequest(name=name, queue_count=queue_count):
                topic = self._last("topic", name=name)
                assert topic.queue_count == queue_count
                topic.previous_queue_count = 0
                self.put(meta_pb2.Change(topic=topic))
                return meta_pb2.ConfirmRehashedResponse(status=OK, topic=topic)
            case meta_pb2.DrainNodeRequest(node_id=node_id, draining=draining):
                node = self._last("node", node_id=node_id)
                node.draining = draining
                self.put(meta_pb2.Change(node=node))
                return meta_pb2.DrainNodeResponse(status=OK, node=node)
            case meta_pb2.ChangeReplicasRequest(raft_group=number, add_node_ids=added):
                row = self._last("raft_group", raft_group=number)
                for node_id in added:
                    row.replicas.add(replica_id=999, node_id=node_id, learner=request.learners)
                self.put(meta_pb2.Change(raft_group=row))
                return meta_pb2.ChangeReplicasResponse(status=OK, raft_group=row)
            case meta_pb2.PreferLeaderRequest(raft_group=number, node_id=node_id):
                row = self._last("raft_group", raft_group=number)
                row.preferred_leader_node_id = node_id
                self.put(meta_pb2.Change(raft_group=row))
                return meta_pb2.PreferLeaderResponse(status=OK, raft_group=row)
            case meta_pb2.MoveQueueRequest(topic=name, queue=queue, to_raft_group=to):
                topic = self._last("topic", name=name)
                override = meta_pb2.QueueOverride(
                    topic_id=topic.topic_id,
                    queue=queue,
                    epochs=[meta_pb2.Epoch(raft_group=self.slots[slot_of(topic.slot_base, queue)])],
                    moving_to=to,
                    revision=self.revision + 1,
                )
                self.put(meta_pb2.Change(queue_override=override))
                return meta_pb2.MoveQueueResponse(status=OK, queue_override=override)
            case meta_pb2.MoveSlotsRequest(first_slot=first, slot_count=count, to_raft_group=to):
                move = meta_pb2.SlotMove(
                    from_raft_group=self.slots[first],
                    to_raft_group=to,
                    slots=range(first, first + count),
                    revision=self.revision + 1,
                )
                self.put(meta_pb2.Change(slot_move=move))
                return meta_pb2.MoveSlotsResponse(status=OK, moves=[move], left=count)
            case meta_pb2.ExplainQueueRequest(queue=queue):
                return meta_pb2.ExplainQueueResponse(status=OK, reasons=[f"queue {queue} is new"])
        raise AngeliaError(UNKNOWN_METHOD, method)

    def _last(self, kind: str, **key: Any) -> Any:
        """Return a copy of a row as it was last written."""
        for change in reversed(self.rows):
            if change.WhichOneof("row") == kind:
                row = getattr(change, kind)
                if all(getattr(row, name) == value for name, value in key.items()):
                    copy = type(row)()
                    copy.CopyFrom(row)
                    return copy
        raise AssertionError(f"no {kind} {key}")

    async def _say_alive(self, watcher: asyncio.Queue[meta_pb2.WatchResponse | None]) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            watcher.put_nowait(meta_pb2.WatchResponse(revision=self.revision, is_fresh=True))

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        """See `strata_angelia.ports.Channel`: rows after a revision, then changes."""
        assert isinstance(request, meta_pb2.WatchRequest)
        if self.down:
            raise AngeliaError(UNAVAILABLE, "the nameserver is down")
        watcher: asyncio.Queue[meta_pb2.WatchResponse | None] = asyncio.Queue()
        self.watchers.append(watcher)
        yield meta_pb2.WatchResponse(
            revision=self.revision,
            snapshot=request.from_revision == 0,
            changes=self.rows[request.from_revision :],
            is_fresh=True,
        )
        alive = asyncio.get_running_loop().create_task(self._say_alive(watcher))
        try:
            while (response := await watcher.get()) is not None:
                yield response
        finally:
            alive.cancel()
        raise AngeliaError(UNAVAILABLE, "the watch was cut")

    def cut(self) -> None:
        """Lose all watchers."""
        for watcher in self.watchers:
            watcher.put_nowait(None)
        self.watchers.clear()

    async def close(self) -> None:
        """See `strata_angelia.ports.Channel`."""

    def _find(self, kind: str, namespace: str, name: str) -> bool:
        found = False
        for change in self.rows:
            if change.WhichOneof("row") == kind:
                row = getattr(change, kind)
                if (row.namespace, row.name) == (namespace, name):
                    found = not change.deleted
        return found


def _refusal(response_type: type, outcome: meta_pb2.MetaOutcome.ValueType, reason: str) -> Message:
    message: Message = response_type(status=meta_pb2.MetaStatus(outcome=outcome, reason=reason))
    return message
