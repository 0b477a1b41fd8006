"""Recalls that are repeated: each gets the answer of the first (rule 37)."""

from __future__ import annotations

import shutil
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.hashing import pack_message_id
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock, until
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, node_under_test
from tests.integration.storage.test_pending_log import (
    MESSAGE_ID,
    apply_all,
    pin_count,
    retain,
    rows_of,
    waiting_of,
)
from tests.integration.storage.waiting import append, let_pass, waiting_batch


async def test_a_repeated_recall_is_answered_alike_when_its_offset_is_trimmed(
    tmp_path: Path,
) -> None:
    """A queue that holds nothing else is trimmed beyond it at once, and its pin goes."""
    clock, retention = ManualClock(), FixedRetention(3_600_000)
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        due_ms = clock.wall_ms() + 1_000
        ids = [pack_message_id(MESSAGE_ID)]
        name = await append(node, waiting_batch([b"later"], [due_ms], ids=ids))
        let_pass(node, 2.0)
        await until(lambda: not waiting_of(node))
        request = pb.RecallRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, pending=name, message_id=MESSAGE_ID
        )
        assert await node.rpc.recall(request, CONTEXT) == pb.RecallResponse()
        await retain(node)
        assert pin_count(node) == 0
        assert await node.rpc.recall(request, CONTEXT) == pb.RecallResponse()
        by_id = pb.RecallRequest(raft_group=GROUP, topic_id=TOPIC.topic_id, message_id=MESSAGE_ID)
        assert await node.rpc.recall(by_id, CONTEXT) == pb.RecallResponse()
        await apply_all(node)
        before = rows_of(node)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        await apply_all(node)
        assert rows_of(node) == before
        assert await node.rpc.recall(request, CONTEXT) == pb.RecallResponse()
