"""Commits that are repeated: each gets the answer of the first (rule 37)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock
from strata_testing.storage_node import GROUP, TOPIC, node_under_test
from tests.integration.storage.test_pending_log import (
    BUSY_TOPIC_ID,
    COMMIT,
    CONFIG,
    fill,
    pin_count,
    retain,
)
from tests.integration.storage.tiered_node import Tier, tiered_node, upload
from tests.integration.storage.tiered_node import retain as retain_tiered
from tests.integration.storage.waiting import end, half, pop_bodies

RETENTION_MS = 2_000


async def test_a_repeated_commit_is_answered_alike_when_its_message_is_trimmed(
    tmp_path: Path,
) -> None:
    """The topic keeps messages for two seconds: the producer still learns what it was told."""
    clock, rng = ManualClock(), random.Random(8)
    retention = FixedRetention(60_000, {BUSY_TOPIC_ID: 1_000, TOPIC.topic_id: RETENTION_MS})
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=retention) as node:
        name = await half(node, b"committed")
        first = await end(node, name, COMMIT)
        assert not first.HasField("refusal")
        assert await pop_bodies(node) == [b"committed"]
        for _ in range(3):
            await fill(node, rng, 9)
            await retain(node, 12)
        assert await pop_bodies(node, consumer_group_id=6) == []
        assert await end(node, name, COMMIT) == first
        # Nor is the log kept for it.
        assert node.app.node.status().log_first_position > 0
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=retention) as node:
        await retain(node, 12)
        assert await end(node, name, COMMIT) == first
        rolled_back = await end(node, name, pb.TRANSACTION_END_ROLLBACK)
        assert rolled_back.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
        assert pin_count(node) == 1
        for _ in range(3):
            await fill(node, rng, 1)
            await retain(node, 700)
        assert pin_count(node) == 0


async def test_a_repeated_commit_is_answered_alike_when_only_the_tier_has_its_message(
    tmp_path: Path,
) -> None:
    """Rows are lost, too: the entry that committed it is still in the log."""
    tier, clock = Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        names = [await half(node, b"committed %d" % number) for number in range(4)]
        answers = [await end(node, name, COMMIT) for name in names]
        await upload(node)
        clock.advance(40)
        await retain_tiered(node)
        engine = node.app.node.engine(GROUP)
        pins = dict(engine.machine.rows.pins.scan())
        local_offset = engine.machine.tier.local_offset
        assert {local_offset(pin.topic_id, pin.queue) for pin in pins.values()} == {1}
        storage = node.app.node
        storage._keeping.checkpointer.want(100 + GROUP)
        await storage._keeping.checkpointer.write_due(storage.engines(), storage.replicas())
    shutil.rmtree(tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert dict(node.app.node.engine(GROUP).machine.rows.pins.scan()) == pins
        assert [await end(node, name, COMMIT) for name in names] == answers
