"""Leases that end together are more than one entry may have: the raft group goes on (rule 25)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import CommandKind
from strata_storage.leading.pops import kept_changes
from strata_storage.leading.proposer import Payload, Proposer
from strata_testing import ManualClock
from strata_testing.storage_node import lease_of, node_under_test
from strata_testing.waiting import until

QUEUES, PER_QUEUE, GROUPS = 3, 60, 4
MESSAGES = QUEUES * PER_QUEUE
ENTRY_BYTES = 2_000


@pytest.mark.parametrize("auto_renew", [True, False])
async def test_a_raft_group_goes_on_however_many_leases_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, auto_renew: bool
) -> None:
    """Every lease of the dead comes back after a restart, in small entries; others pop and ack."""
    monkeypatch.setattr(kept_changes, "_ENTRY_BYTES", ENTRY_BYTES)
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        for queue in range(QUEUES):
            await node.append([b"%d/%d" % (queue, at) for at in range(PER_QUEUE)], queue=queue)
        for group in range(GROUPS):
            popped = await node.pop(
                consumer_group_id=100 + group,
                max_messages=MESSAGES,
                auto_renew=auto_renew,
                holder=1_000 + group if auto_renew else 0,
                invisible_ms=0 if auto_renew else 30_000,
            )
            assert len(popped.messages) == MESSAGES
    sizes: list[int] = []
    propose = Proposer.propose

    def counted(proposer: Proposer, payload: Payload, *rest: object) -> object:
        if payload[0][0] == CommandKind.LEASES:
            sizes.append(sum(map(len, payload)))
        return propose(proposer, payload, *rest)  # type: ignore[arg-type]

    async with node_under_test(tmp_path, clock=clock) as node:
        (engine,) = node.app.node.engines()
        leader = engine.leading()
        await until(lambda: leader.see_leases(1_000))
        monkeypatch.setattr(Proposer, "propose", counted)
        clock.advance(60)
        await node.app.node.expire_once(engine, leader)
        monkeypatch.undo()
        assert len(sizes) >= GROUPS * MESSAGES * 68 // ENTRY_BYTES
        assert max(sizes) <= ENTRY_BYTES + 16
        other = await node.pop(consumer_group_id=5, max_messages=1)
        assert (await node.ack(lease_of(other.messages[0]))).refusal.outcome == 0
        for group in range(GROUPS):
            again = await node.pop(consumer_group_id=100 + group, max_messages=MESSAGES)
            assert again.refusal.outcome == pb.OUTCOME_UNSPECIFIED
            bodies = {(each.queue, each.offset) for each in again.messages}
            assert bodies == {(queue, at) for queue in range(QUEUES) for at in range(PER_QUEUE)}
