"""A message that was taken back stays away, also when rows are made again from log and tier."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_cli.commands.tier_restore import write_log
from strata_testing import ManualClock
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, NodeUnderTest, node_under_test
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep.restore import plan_restore
from tests.integration.storage.kept_rows import kept_rows
from tests.integration.storage.tiered_node import (
    MIB,
    Tier,
    empty_log,
    fetch_all,
    fill,
    retain,
    tiered_node,
    upload,
)

QUEUE = 1
REPLICA_ID = 100 + GROUP
# Offsets 0 to 3 of the queue; 1 and 3 are taken back.
BODIES = [b"first", b"second", b"third", b"fourth"]
LEFT = [(0, b"first"), (2, b"third")]


def message_id(at: int) -> bytes:
    return b"\x01" + bytes([at + 1]) * 16


async def send_and_recall(node: NodeUnderTest, *, uploaded_before: bool) -> None:
    """Append four messages in one run and take two of them back, before or after the upload."""
    await node.append(BODIES, queue=QUEUE, ids=[message_id(at) for at in range(4)])
    if uploaded_before:
        await upload(node)
    for at in (1, 3):
        await recall(node, at)
    await node.app.node.engine(GROUP).barrier()
    await upload(node)


async def recall(node: NodeUnderTest, at: int) -> None:
    request = pb.RecallRequest(
        raft_group=GROUP,
        topic_id=TOPIC.topic_id,
        message_id=message_id(at).hex(),
        position=pb.QueueOffset(queue=QUEUE, offset=at),
    )
    assert not (await node.rpc.recall(request, CONTEXT)).refusal.outcome


async def checkpoint(node: NodeUnderTest) -> None:
    storage = node.app.node
    storage._keeping.checkpointer.want(REPLICA_ID)
    await storage._keeping.checkpointer.write_due(storage.engines(), storage.replicas())


async def first_messages(node: NodeUnderTest) -> list[tuple[int, bytes]]:
    return [found for found in await fetch_all(node, QUEUE) if found[0] < 4]


@pytest.mark.parametrize("uploaded_before", [False, True])
async def test_it_stays_away_when_the_log_gave_it_up_and_rows_are_lost(
    tmp_path: Path, uploaded_before: bool
) -> None:
    """An object that was written before the recall still has it; a consumer group never gets it."""
    rng, tier, clock = random.Random(1), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await send_and_recall(node, uploaded_before=uploaded_before)
        await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        assert await first_messages(node) == LEFT
    shutil.rmtree(tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert not node.app.node.status().replicas[0].reason
        assert await first_messages(node) == LEFT
        popped = await node.pop(queue=QUEUE, max_messages=3)
        assert [(m.offset, m.message) for m in popped.messages][:2] == LEFT
        # The sender that repeats its recall is told the same.
        await recall(node, 1)
        retracted = node.app.node.engine(GROUP).machine.rows.retracted
        assert list(retracted.all()) == [(TOPIC.topic_id, QUEUE, at) for at in (1, 3)]


async def test_it_stays_away_when_it_was_taken_back_after_the_checkpoint(tmp_path: Path) -> None:
    """The replay of the recall meets rows that came from an object written without the message."""
    rng, tier, clock = random.Random(2), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await node.append(BODIES, queue=QUEUE, ids=[message_id(at) for at in range(4)])
        await fill(node, rng, 26)
        clock.advance(40)
        await fill(node, rng, 20, boot_id=2)
        await checkpoint(node)
        covered = node.app.node._keeping.checkpointer.indexes[REPLICA_ID]
        for at in (1, 3):
            await recall(node, at)
        # Another 31 s: the first ones are old enough to leave the log then.
        await upload(node)
        for _ in range(4):
            await retain(node)
        assert node.app.node.status().log_first_position >= 16 * MIB
        assert node.app.node._keeping.checkpointer.indexes[REPLICA_ID] == covered
    shutil.rmtree(tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert not node.app.node.status().replicas[0].reason
        assert await first_messages(node) == LEFT


async def test_it_stays_away_when_only_the_rows_are_lost(tmp_path: Path) -> None:
    """The log has entry and recall, and a checkpoint covers both."""
    async with node_under_test(tmp_path) as node:
        await node.append(BODIES, queue=QUEUE, ids=[message_id(at) for at in range(4)])
        for at in (1, 3):
            await recall(node, at)
        await checkpoint(node)
        before = kept_rows(list(node.app.node.engine(GROUP).machine.rows.all()))
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path) as node:
        assert await first_messages(node) == LEFT
        assert kept_rows(list(node.app.node.engine(GROUP).machine.rows.all())) == before


async def test_it_stays_away_after_a_restore(tmp_path: Path) -> None:
    """A message recalled before the manifest was written stays away, uploaded or not."""
    tier = Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        await send_and_recall(node, uploaded_before=True)
        await node.app.node.tiering._led[GROUP].publisher.publish()
    restore = await plan_restore(MemoryObjectStore(tier.bucket), "test")
    write_log(restore.raft_groups, tmp_path / "new" / "log", {GROUP: REPLICA_ID})
    again = Tier(tier.policies, home="restored")
    again.buckets = tier.buckets
    async with tiered_node(tmp_path / "new", again) as node:
        assert await first_messages(node) == LEFT
        popped = await node.pop(queue=QUEUE, max_messages=9)
        assert [(m.offset, m.message) for m in popped.messages] == LEFT
