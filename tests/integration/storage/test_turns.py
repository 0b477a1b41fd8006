"""Raft groups of one node take turns: what one waits for holds up no other (rule 39)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

from strata_mq.commands import TrimCommand
from strata_state.ports import StateError
from strata_storage.rows.machine import GroupMachine
from strata_storage.upkeep import retention
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import until
from strata_testing.storage_node import GROUP, NodeUnderTest, node_under_test
from tests.integration.storage.damaged_log import GROUPS, OTHER_GROUP, append


def min_offset(node: NodeUnderTest, raft_group: int, queue: int) -> int:
    """Return the first offset that a queue keeps."""
    row = node.app.node.engine(raft_group).machine.queues.get(7, queue)
    assert row is not None
    return row.min_offset


async def test_a_trim_that_waits_for_its_quorum_holds_up_no_other(tmp_path: Path) -> None:
    """The other raft group gives up its old messages all the same."""
    retained = FixedRetention(1_000)
    async with node_under_test(tmp_path, raft_groups=GROUPS, retention=retained) as node:
        await append(node, GROUP, [b"a"], 0)
        await append(node, OTHER_GROUP, [b"b"], 1)
        node.clock.advance(10)
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        proposer = node.app.node.engine(GROUP).leading().proposer
        calls = type(proposer).propose

        def waits(self: object, *arguments: object) -> object:
            return never if self is proposer else calls(self, *arguments)  # type: ignore[arg-type]

        with patch.object(type(proposer), "propose", waits):
            turn = asyncio.ensure_future(node.app.node.retain_once())
            await until(lambda: min_offset(node, OTHER_GROUP, 1) == 1)
            assert min_offset(node, GROUP, 0) == 0
            turn.cancel()
            await asyncio.wait({turn})


async def test_a_trim_that_cannot_read_its_rows_holds_up_no_other(tmp_path: Path) -> None:
    """It is tried again; the process goes on."""
    retained = FixedRetention(1_000)
    async with node_under_test(tmp_path, raft_groups=GROUPS, retention=retained) as node:
        await append(node, GROUP, [b"a"], 0)
        await append(node, OTHER_GROUP, [b"b"], 1)
        node.clock.advance(10)
        plan = retention.plan_trims

        async def failing(
            machine: GroupMachine, *arguments: object, **named: object
        ) -> AsyncIterator[TrimCommand]:
            if machine.raft_group == GROUP:
                raise StateError("read failed")
            async for trim in plan(machine, *arguments, **named):  # type: ignore[arg-type]
                yield trim

        with patch("strata_storage.process.node.plan_trims", failing):
            await node.app.node.retain_once()
        assert (min_offset(node, GROUP, 0), min_offset(node, OTHER_GROUP, 1)) == (0, 1)
        await node.app.node.retain_once()
        assert min_offset(node, GROUP, 0) == 1
