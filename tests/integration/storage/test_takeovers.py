"""A broker and the storage node that leads die together: nothing is held for a client in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import ManualClock
from strata_testing.storage_node import CONTEXT, NodeUnderTest, lease_of, node_under_test

CLIENT, BEFORE, AFTER = 5, 0xA, 0xB


async def turn(node: NodeUnderTest, *boot_ids: int) -> None:
    """Let the client be reported by brokers, and have a turn of the timer."""
    for boot_id in boot_ids:
        report = pb.ReportClientsRequest(broker_boot_id=boot_id, full=True, live=[CLIENT])
        await node.rpc.report_clients(report, CONTEXT)
    (engine,) = node.app.node.engines()
    await node.app.node.expire_once(engine, engine.leading())


async def let_pass(node: NodeUnderTest, seconds: int, *boot_ids: int) -> None:
    """Let time pass, with a turn every five seconds."""
    for _ in range(seconds // 5):
        await turn(node, *boot_ids)
        node.clock.advance(5.0)
    await turn(node, *boot_ids)


async def take(node: NodeUnderTest, boot_id: int) -> list[tuple[bytes, int]]:
    """Return what the client gets by way of a broker, and its attempts."""
    popped = await node.pop(
        auto_renew=True, holder=CLIENT, broker_boot_id=boot_id, invisible_ms=0, max_attempts=1
    )
    return [(each.message, each.attempt_count) for each in popped.messages]


async def test_a_message_nobody_was_given_comes_again(tmp_path: Path) -> None:
    """The client lives, and never got it; its only attempt is left (rule 36)."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"1"], queue=1)
        assert await take(node, BEFORE) == [(b"1", 1)]
    async with node_under_test(tmp_path, clock=clock) as node:
        await let_pass(node, 10, AFTER)
        assert await take(node, AFTER) == []
        await let_pass(node, 10, AFTER)
        assert await take(node, AFTER) == [(b"1", 1)]
        # It is the new broker's from here on.
        await let_pass(node, 120, AFTER)
        assert await take(node, AFTER) == []


@pytest.mark.parametrize("quiet_s", [30, 3_600])
async def test_a_message_that_is_worked_on_is_given_to_nobody_else(
    tmp_path: Path, quiet_s: int
) -> None:
    """The leader lived on after the take, and wrote nothing else: it was delivered long ago."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"1"], queue=1)
        assert await take(node, BEFORE) == [(b"1", 1)]
        (engine,) = node.app.node.engines()
        await let_pass(node, quiet_s, BEFORE)
        written = engine.machine.applied_index()
        await let_pass(node, quiet_s, BEFORE)
        assert engine.machine.applied_index() == written
    async with node_under_test(tmp_path, clock=clock) as node:
        await let_pass(node, 600, AFTER)
        assert await take(node, AFTER) == []


async def test_a_broker_that_lives_keeps_what_it_took(tmp_path: Path) -> None:
    """Only the leader changed: the message was delivered, or its broker gives it back."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"1"], queue=1)
        popped = await node.pop(
            auto_renew=True, holder=CLIENT, broker_boot_id=BEFORE, invisible_ms=0
        )
    async with node_under_test(tmp_path, clock=clock) as node:
        await let_pass(node, 600, BEFORE, AFTER)
        assert await take(node, AFTER) == []
        outcomes = (await node.ack(lease_of(popped.messages[0]))).outcomes
        assert list(outcomes) == [pb.OUTCOME_OK]


async def test_without_leases_no_time_is_written(tmp_path: Path) -> None:
    """A raft group whose messages are consumed stays quiet."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"1"], queue=1)
        popped = await node.pop(auto_renew=True, holder=CLIENT, broker_boot_id=BEFORE)
        await node.ack(lease_of(popped.messages[0]))
        (engine,) = node.app.node.engines()
        written = engine.machine.applied_index()
        await let_pass(node, 60, BEFORE)
        assert engine.machine.applied_index() == written
