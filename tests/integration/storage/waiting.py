"""Delayed and half messages in tests of a storage node: batches, calls, and the passing of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import BatchBuilder, OutgoingMessage, PartKey, PartKind
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    message_id,
)


def waiting_batch(
    bodies: Sequence[bytes],
    due_times: Sequence[int],
    *,
    kind: PartKind = PartKind.DELAYED,
    ids: Sequence[bytes] | None = None,
    topic_id: int = TOPIC.topic_id,
    queue: int = -1,
    queue_count: int = TOPIC.queue_count,
) -> bytes:
    """Build an append batch of one part whose messages wait."""
    builder = BatchBuilder(google_crc32c.value)
    messages = [
        OutgoingMessage(
            body,
            google_crc32c.value(body),
            0,
            0,
            ids[at] if ids else message_id(body),
            3,
            1_700_000_000_000,
            (),
            due_ms,
        )
        for at, (body, due_ms) in enumerate(zip(bodies, due_times, strict=True))
    ]
    builder.add(PartKey(topic_id, queue, TOPIC.slot_base, queue_count, kind), messages)
    return builder.build()


async def append(node: NodeUnderTest, batch: bytes, *, raft_group: int = GROUP) -> pb.PendingRef:
    """Append a batch of one waiting part; return the name of its first message."""
    node.sequence += 1
    request = pb.AppendRequest(
        broker_boot_id=1,
        batches=[pb.GroupBatch(raft_group=raft_group, sequence=node.sequence, batch=batch)],
    )
    (result,) = (await node.rpc.append(request, CONTEXT)).results
    assert not result.refusal.outcome, result.refusal.reason
    assert result.parts[0].outcome == pb.OUTCOME_OK
    return result.parts[0].first_pending


async def delay(node: NodeUnderTest, bodies: Sequence[bytes], delay_ms: int) -> pb.PendingRef:
    """Append messages that are due after a time."""
    due_ms = node.clock.wall_ms() + delay_ms
    return await append(node, waiting_batch(bodies, [due_ms] * len(bodies)))


async def half(node: NodeUnderTest, body: bytes, check_after_ms: int = 6_000) -> pb.PendingRef:
    """Append a half message."""
    due_ms = node.clock.wall_ms() + check_after_ms
    return await append(node, waiting_batch([body], [due_ms], kind=PartKind.HALF))


async def end(
    node: NodeUnderTest, name: pb.PendingRef, how: pb.TransactionEnd.ValueType, **fields: object
) -> pb.EndTransactionResponse:
    """End a transaction."""
    request = pb.EndTransactionRequest(
        raft_group=GROUP, pending=name, topic_id=TOPIC.topic_id, end=how
    )
    request.MergeFrom(pb.EndTransactionRequest(**fields))  # type: ignore[arg-type]
    return await node.rpc.end_transaction(request, CONTEXT)


async def end_all(
    node: NodeUnderTest, ends: Iterable[tuple[pb.PendingRef, pb.TransactionEnd.ValueType]]
) -> pb.EndTransactionResponse:
    """End several transactions."""
    request = pb.EndTransactionRequest(raft_group=GROUP)
    for name, how in ends:
        request.halves.add(pending=name, topic_id=TOPIC.topic_id, end=how)
    return await node.rpc.end_transaction(request, CONTEXT)


def let_pass(node: NodeUnderTest, seconds: float) -> None:
    """Move the clock; timers, which sleep by the real one, look at it."""
    node.clock.advance(seconds)
    for engine in node.app.node.engines():
        if engine.leader is not None:
            engine.leader.pending.timers.wake()


async def pop_bodies(node: NodeUnderTest, **fields: object) -> list[bytes]:
    """Pop, and return the messages."""
    response = await node.pop(**fields)
    assert not response.refusal.outcome, response.refusal.reason
    return [message.message for message in response.messages]
