"""Upkeep of the log costs as little as there is work: no trim or checkpoint for its own sake."""

from __future__ import annotations

import random
from pathlib import Path

from strata_testing import ManualClock
from strata_testing.storage_node import GROUP, NodeUnderTest, node_under_test, small_config
from tests.integration.storage.damaged_log import GROUPS, OTHER_GROUP, append, status_of
from tests.integration.storage.kv_node import KvNode
from tests.integration.storage.test_relocation import RETENTION, SHORT

DAY_S = 86_400


async def turns(node: NodeUnderTest, count: int) -> list[int]:
    """Have turns of retention, a minute apart; return the last index behind each."""
    indexes = []
    for _ in range(count):
        node.clock.advance(60)
        await node.app.node.retain_once()
        indexes.append(status_of(node, GROUP).last_index)
    return indexes


async def test_an_idle_raft_group_comes_to_rest(tmp_path: Path) -> None:
    """It trims once after its last work and once a day, with messages gone and without any."""
    async with node_under_test(tmp_path, retention=RETENTION) as node:
        (before,) = await turns(node, 1)
        assert set(await turns(node, 4)) == {before}
        await append(node, GROUP, [b"a", b"b"], 0, topic_id=SHORT)
        # One trim deletes the messages, one may come before it; none for the sake of a trim.
        after = (await turns(node, 5))[-1]
        assert before + 2 <= after <= before + 3
        assert set(await turns(node, 3)) == {after}
        for day in (1, 2):
            node.clock.advance(DAY_S)
            assert set(await turns(node, 3)) == {after + day}


async def test_tables_are_not_written_again_in_every_turn(tmp_path: Path) -> None:
    """Tables of more than a segment: one checkpoint, until other log came, whatever trims say."""
    rng = random.Random(1)
    config = small_config(recent_bytes=0)
    async with KvNode(tmp_path, clock=ManualClock(), config=config) as node:
        for number in range(200):
            await node.put(b"%d" % number, rng.randbytes(60_000))
        checkpointer = node.app.node._keeping.checkpointer
        indexes: list[int] = []
        for number in range(6):
            await node.put(b"%d" % number, b"small")
            node.clock.advance(60)
            await node.app.node.retain_once()
            indexes += checkpointer.indexes.values()
        assert len(node.app.node.status().replicas) == 1
        assert len(indexes) == 6
        assert len(set(indexes)) == 1, "tables were written again"
        assert node.app.node.status().log_first_position > 0, "nothing was freed"


async def test_an_idle_raft_group_does_not_pin_the_log(tmp_path: Path) -> None:
    """Also where nothing is copied: its last trim is in a segment that goes, so it trims again."""
    config = small_config(recent_bytes=0, relocate_bytes_per_turn=0)
    rng = random.Random(1)
    async with node_under_test(
        tmp_path, config=config, retention=RETENTION, raft_groups=GROUPS
    ) as node:
        (before,) = await turns(node, 1)
        trims = 0
        for _ in range(60):
            await append(node, OTHER_GROUP, [rng.randbytes(900_000)], 1, topic_id=SHORT)
            (after,) = await turns(node, 1)
            trims, before = trims + after - before, after
        status = node.app.node.status()
        assert status.log_first_position > 32 * 1024 * 1024
        assert 1 <= trims <= 10, "not one a segment"
