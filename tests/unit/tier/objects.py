"""Messages, objects and tier state for the tests of the tier: small, and made from numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strata_mq.layout.hashing import key_hash, text_hash
from strata_state.memory_store import MemoryStore
from strata_tier.objects.blocks import MessageRun, SearchTerms
from strata_tier.objects.layout import ObjectKind, checksum
from strata_tier.objects.plan import (
    Author,
    ObjectPlan,
    PlannedBlock,
    PlanOptions,
    QueueRuns,
    plan_object,
)
from strata_tier.objects.state import CommitRanges, ObjectRef, TierChange
from strata_tier.objects.writer import BlockData, ObjectWriter
from strata_tier.ranges.manifest import Manifest, encode_manifest
from strata_tier.ranges.metadata import apply_change
from strata_tier.ranges.metadata_rows import RowTierMetadata
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.store.ports import ObjectStore

HOME = "cafe0001cafe0001"
RAFT_GROUP = 7


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a test; all of it follows from these."""

    topic_id: int
    queue: int
    offset: int
    tag: str = ""
    body_bytes: int = 40
    time_ms: int = 0
    keys: Sequence[str] = ()

    @property
    def stored(self) -> bytes:
        """Its bytes; they differ from all others'."""
        name = f"{self.topic_id}/{self.queue}/{self.offset}:".encode()
        return (name * (self.body_bytes // len(name) + 1))[: max(self.body_bytes, len(name))]

    @property
    def packed_id(self) -> bytes:
        """A message id of 17 bytes."""
        return b"\x01" + self.queue.to_bytes(8) + self.offset.to_bytes(8)


def run_of(messages: Sequence[Message]) -> MessageRun:
    """Return messages of one queue as a run whose source is the messages."""
    return MessageRun(
        array("Q", [message.offset for message in messages]),
        array("Q", [message.time_ms for message in messages]),
        array("I", [len(message.stored) for message in messages]),
        array("I", [checksum(message.stored) for message in messages]),
        array("Q", [text_hash(message.tag) if message.tag else 0 for message in messages]),
        array("Q", [0] * len(messages)),
        {message.offset: message for message in messages},
    )


def queue_of(
    messages: Sequence[Message], first: int | None = None, end: int | None = None
) -> QueueRuns:
    """Return messages of one queue as what is uploaded of it."""
    head = messages[0]
    return QueueRuns(
        head.topic_id,
        head.queue,
        head.offset if first is None else first,
        messages[-1].offset + 1 if end is None else end,
        [run_of(messages)],
    )


def data_of(block: PlannedBlock) -> BlockData:
    """Return the bodies and terms of a planned block, from the sources of its runs."""
    messages = [
        piece.source[offset]  # type: ignore[index]
        for piece in block.pieces
        for offset in piece.offsets
    ]
    return BlockData(
        b"".join([message.stored for message in messages]),
        SearchTerms(
            b"".join([message.packed_id for message in messages]),
            bytes(len(message.keys) for message in messages),
            array("Q", [key_hash(key) for message in messages for key in message.keys]),
        ),
    )


def written(plan: ObjectPlan) -> tuple[bytes, ObjectRef]:
    """Return the bytes of a planned object and what a commit says of it."""
    writer = ObjectWriter(plan)
    parts = [writer.begin()]
    for block in plan.blocks:
        parts += writer.add(data_of(block))
    parts += writer.finish()
    return b"".join(parts), writer.ref


@dataclass
class Tier:
    """A store, and the tier state of one raft group."""

    store: ObjectStore = field(default_factory=MemoryObjectStore)
    rows: MemoryStore = field(default_factory=MemoryStore)
    block_bytes: int = 400
    author: Author = field(default_factory=lambda: Author(HOME, RAFT_GROUP))

    @property
    def metadata(self) -> RowTierMetadata:
        """The state, as it is in the rows."""
        return RowTierMetadata(self.rows, RAFT_GROUP)

    def apply(self, change: TierChange) -> None:
        """Apply one change."""
        batch = self.rows.new_batch()
        apply_change(self.metadata, batch, change)
        self.rows.write(batch)

    async def add(
        self,
        queues: Iterable[QueueRuns],
        kind: ObjectKind = ObjectKind.STREAM_SET,
        time_ms: int = 1_000,
    ) -> ObjectRef:
        """Upload an object and commit it."""
        plan = plan_object(self.author, queues, PlanOptions(self.block_bytes), kind)
        data, ref = written(plan)
        await self.store.put(ref.key, data)
        self.apply(CommitRanges(ref, plan.ranges, time_ms))
        return ref


async def put_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Store a manifest."""
    await store.put(manifest.key, encode_manifest(manifest))


def messages_of(topic_id: int, queue: int, offsets: Iterable[int], **more: object) -> list[Message]:
    """Return messages whose store time grows with the offset."""
    return [
        Message(topic_id, queue, offset, time_ms=1_000 + offset, **more)  # type: ignore[arg-type]
        for offset in offsets
    ]
