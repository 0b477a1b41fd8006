"""The end of an epoch of a queue: one destination, and nothing is closed that was not decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.leading.proposer import Proposer
from strata_testing.storage_node import CONTEXT, GROUP, NodeUnderTest, node_under_test


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


async def test_a_seal_that_is_refused_leaves_the_queue_open(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was proposed, so nothing was decided: appends go on where they were."""
    await node.append([b"a"])
    leader = node.app.node.engine(GROUP).leading()

    def refuse(payload: object, when_applied: object = None) -> NoReturn:
        raise Refused(pb.OUTCOME_OVERLOADED, "proposals wait")

    monkeypatch.setattr(Proposer, "propose", refuse)
    seal = pb.SealRequest(raft_group=GROUP, topic_id=7, queue=0, destination_raft_group=2)
    assert (await node.rpc.seal(seal, CONTEXT)).refusal.outcome == pb.OUTCOME_OVERLOADED
    monkeypatch.undo()
    assert not leader.appends.is_sealed(7, 0)
    assert (await node.append([b"b"])).parts[0].base_offset == 1


async def test_of_two_seals_with_different_destinations_the_first_one_holds(
    node: NodeUnderTest,
) -> None:
    """Before it is applied and after: the other one is refused, and says where the queue goes."""
    await node.append([b"a"])
    engine = node.app.node.engine(GROUP)
    results = await asyncio.gather(
        engine.seal(7, 0, 2), engine.seal(7, 0, 3), engine.seal(7, 0, 2), return_exceptions=True
    )
    assert [results[0], results[2]] == [1, 1]
    assert isinstance(results[1], Refused)
    assert results[1].outcome == pb.OUTCOME_INVALID
    await engine.barrier()
    assert engine.machine.moves[7, 0].destination == 2
    with pytest.raises(Refused, match="on its way to raft group 2"):
        await engine.seal(7, 0, 3)
    assert await engine.seal(7, 0, 2) == 1
    assert engine.machine.moves[7, 0].destination == 2


async def test_a_queue_that_came_back_takes_appends_although_nobody_waited(
    node: NodeUnderTest,
) -> None:
    """The call that opened it was cancelled, and its repeat finds the epoch open."""
    engine = node.app.node.engine(GROUP)
    assert await engine.seal(7, 0, 2) == 0
    await engine.barrier(proposed_too=True)
    opening = asyncio.ensure_future(engine.open(7, 0, 2, 0))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait((opening,))
    assert opening.cancelled()
    await engine.barrier(proposed_too=True)
    row = engine.machine.queues.get(7, 0)
    assert row is not None
    assert (row.epoch, row.sealed) == (2, False)
    await engine.open(7, 0, 2, 0)
    assert (await node.append([b"a"])).parts[0].outcome == pb.OUTCOME_OK
    # It can leave again.
    assert await engine.seal(7, 0, 2) == 1
    await engine.open(7, 0, 2, 0)
    assert (await node.append([b"b"])).parts[0].outcome == pb.OUTCOME_SEALED
