"""Calls whose answer never arrived: a repeat gets the same, and what was leased for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    pop_request,
)
from tests.integration.storage.waiting import (
    append,
    delay,
    end,
    half,
    let_pass,
    pop_bodies,
    waiting_batch,
)

ID_TEXT = "01" * 17

COMMIT, ROLLBACK = pb.TRANSACTION_END_COMMIT, pb.TRANSACTION_END_ROLLBACK


async def _pop(
    node: NodeUnderTest,
    attempt: int,
    *,
    repeated: bool,
    auto_renew: bool = True,
    taken_only: bool = False,
) -> list[tuple[int, int]]:
    """Pop; return (queue, offset)."""
    request = pop_request(attempt=attempt, auto_renew=auto_renew, holder=5)
    request.repeated = repeated
    request.max_messages = 3
    request.taken_only = taken_only
    response = await node.rpc.pop(request, CONTEXT)
    assert response.refusal.outcome == pb.OUTCOME_UNSPECIFIED
    return [(message.queue, message.offset) for message in response.messages]


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_a_repeat_gets_the_same_leases(tmp_path: Path, auto_renew: bool) -> None:
    """Nobody was given them: they are no attempt. After a restart the repeat finds them, too."""
    pop = partial(_pop, auto_renew=auto_renew)
    async with node_under_test(tmp_path) as node:
        for queue in range(4):
            await node.append([b"%d" % queue], queue=queue)
        first = await pop(node, 77, repeated=False)
        assert len(first) == 3
        assert sorted(await pop(node, 77, repeated=True)) == sorted(first)
        assert await pop(node, 78, repeated=True, taken_only=True) == []
        other = await pop(node, 78, repeated=True)
        assert len(other) == 1
        assert not set(other) & set(first)
    async with node_under_test(tmp_path) as node:
        assert sorted(await pop(node, 77, repeated=True)) == sorted(first)
        assert await pop(node, 79, repeated=False) == []


async def test_what_a_lost_broker_took_is_delivered_to_a_client_that_lives(
    tmp_path: Path,
) -> None:
    """Its holder never heard of the lease and goes on living; it becomes no dead letter for it."""
    broker, client = 0xB0B, 5
    async with node_under_test(tmp_path) as node:
        await node.append([b"1"], queue=0)
        request = pb.WatchRequest(broker_boot_id=broker)
        watch = cast(AsyncGenerator[pb.WatchResponse, None], node.rpc.watch(request, CONTEXT))
        async with aclosing(watch):
            await anext(watch)
            taken = await node.pop(
                auto_renew=True, holder=client, broker_boot_id=broker, max_attempts=1
            )
            assert len(taken.messages) == 1
        waited_s = 0
        while waited_s < 5:
            report = pb.ReportClientsRequest(broker_boot_id=77, full=True, live=[client])
            await node.rpc.report_clients(report, CONTEXT)
            (engine,) = node.app.node.engines()
            leader = engine.leading()
            await node.app.node.expire_once(engine, leader)
            again = await node.pop(auto_renew=True, holder=client, broker_boot_id=77)
            if again.messages:
                break
            node.clock.advance(1.0)
            waited_s += 1
        assert waited_s == 3
        assert again.messages[0].attempt_count == 1


async def change(
    node: NodeUnderTest, lease: pb.LeaseRef, invisible_ms: int, *, repeated: bool
) -> pb.ChangeInvisibleResponse:
    """Change when a leased message is visible again."""
    request = pb.ChangeInvisibleRequest(
        raft_group=GROUP, lease=lease, invisible_ms=invisible_ms, repeated=repeated
    )
    return await node.rpc.change_invisible(request, CONTEXT)


async def test_a_repeated_change_is_answered_as_the_first_one(tmp_path: Path) -> None:
    """At the same leader and at the next one; who does not repeat has a void handle."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"1"], queue=0)
        lease = lease_of((await node.pop(queue=0)).messages[0])
        first = await change(node, lease, 60_000, repeated=True)
        assert first.lease.lease_number == lease.lease_number + 1
        assert await change(node, lease, 60_000, repeated=True) == first
    async with node_under_test(tmp_path) as node:
        assert await change(node, lease, 60_000, repeated=True) == first
        refused = await change(node, lease, 60_000, repeated=False)
        assert refused.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
        assert list((await node.ack(first.lease)).outcomes) == [pb.OUTCOME_OK]
        late = await change(node, lease, 60_000, repeated=True)
        assert late == first, "the row is gone, the answer is the same"


async def test_a_repeated_forward_copies_nothing_twice(tmp_path: Path) -> None:
    """The copy in the dead-letter topic tells that it was done; an ack was something else."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"dead", b"acked"], queue=0)
        popped = await node.pop(queue=0)
        dead, acked = (lease_of(message) for message in popped.messages)
        await node.ack(acked)

        async def forward(lease: pb.LeaseRef, *, repeated: bool) -> int:
            request = pb.ForwardToDeadLetterRequest(
                raft_group=GROUP,
                lease=lease,
                dead_letter_topic_id=DEAD_LETTER_TOPIC_ID,
                repeated=repeated,
            )
            return (await node.rpc.forward_to_dead_letter(request, CONTEXT)).refusal.outcome

        assert await forward(dead, repeated=True) == pb.OUTCOME_UNSPECIFIED
        assert await forward(dead, repeated=True) == pb.OUTCOME_UNSPECIFIED
        assert await forward(dead, repeated=False) == pb.OUTCOME_INVALID_HANDLE
        assert await forward(acked, repeated=True) == pb.OUTCOME_INVALID_HANDLE
        fetched = await node.rpc.fetch(
            pb.FetchRequest(
                raft_group=GROUP, topic_id=DEAD_LETTER_TOPIC_ID, queue=GROUP, max_messages=9
            ),
            CONTEXT,
        )
        assert [message.message for message in fetched.messages] == [b"dead"]


async def test_a_pop_that_is_cancelled_keeps_nothing(tmp_path: Path) -> None:
    """However far it has come, the next one gets the message, and it is the first attempt."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"only"])
        for turns in range(60):
            leaves = asyncio.ensure_future(node.rpc.pop(pop_request(max_attempts=1), CONTEXT))
            for _ in range(turns):
                await asyncio.sleep(0 if turns < 30 else 0.000_2)
            leaves.cancel()
            await asyncio.wait({leaves})
            if leaves.cancelled():
                request = pop_request(max_attempts=1, wait_ms=5_000)
                response = await node.rpc.pop(request, CONTEXT)
            else:
                response = leaves.result()
            assert [each.message for each in response.messages] == [b"only"], turns
            assert response.messages[0].attempt_count == 1
            given_back = pb.ReleaseRequest(
                raft_group=GROUP, undelivered=[lease_of(response.messages[0])]
            )
            assert (await node.rpc.release(given_back, CONTEXT)).released == 1


async def test_a_release_is_one_entry_and_no_attempt(tmp_path: Path) -> None:
    """A release may have many leases on several queues; it may be repeated after a restart."""
    async with node_under_test(tmp_path) as node:
        for queue in range(4):
            await node.append([b"%d" % number for number in range(8)], queue=queue)
        popped = await node.pop(max_messages=32, max_attempts=1)
        assert len(popped.messages) == 32
        release = pb.ReleaseRequest(
            raft_group=GROUP, undelivered=[lease_of(message) for message in popped.messages]
        )
        (engine,) = node.app.node.engines()
        before = engine.machine.applied_index()
        assert (await node.rpc.release(release, CONTEXT)).released == 32
        assert engine.machine.applied_index() == before + 1
        assert (await node.rpc.release(release, CONTEXT)).released == 0
    async with node_under_test(tmp_path) as node:
        assert (await node.rpc.release(release, CONTEXT)).released == 0
        again = await node.pop(max_messages=32, max_attempts=1)
        assert [message.attempt_count for message in again.messages] == [1] * 32
        assert (await node.rpc.release(release, CONTEXT)).released == 0
        acked = await node.ack(*(lease_of(message) for message in again.messages))
        assert set(acked.outcomes) == {pb.OUTCOME_OK}


async def test_a_repeat_is_told_what_the_first_one_was_under_the_next_leader(
    tmp_path: Path,
) -> None:
    """Only this is left of a recall and a rollback; a name that never was is refused still."""
    async with node_under_test(tmp_path) as node:
        due_ms = node.clock.wall_ms() + 60_000
        batch = waiting_batch([b"recalled"], [due_ms], ids=[bytes.fromhex(ID_TEXT)])
        recalled = await append(node, batch)
        await delay(node, [b"waits"], 60_000)
        rolled_back = await half(node, b"rolled back")
        committed = await half(node, b"committed")
        assert await recall(node, recalled) == pb.OUTCOME_UNSPECIFIED
        assert await outcome(node, rolled_back, ROLLBACK) == pb.OUTCOME_UNSPECIFIED
        assert await outcome(node, committed, COMMIT) == pb.OUTCOME_UNSPECIFIED
    async with node_under_test(tmp_path) as node:
        assert await recall(node, recalled) == pb.OUTCOME_UNSPECIFIED
        assert await outcome(node, rolled_back, ROLLBACK) == pb.OUTCOME_UNSPECIFIED
        assert await outcome(node, rolled_back, COMMIT) == pb.OUTCOME_INVALID_HANDLE
        assert await outcome(node, committed, COMMIT) == pb.OUTCOME_UNSPECIFIED
        assert await outcome(node, committed, ROLLBACK) == pb.OUTCOME_INVALID_HANDLE
        never = pb.PendingRef(index=recalled.index, ordinal=recalled.ordinal + 9)
        assert await recall(node, never) == pb.OUTCOME_INVALID_HANDLE
        assert await pop_bodies(node) == [b"committed"]


async def recall(node: NodeUnderTest, name: pb.PendingRef) -> int:
    """Recall a message that waits; return the outcome."""
    request = pb.RecallRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, message_id=ID_TEXT, pending=name
    )
    return (await node.rpc.recall(request, CONTEXT)).refusal.outcome


async def outcome(
    node: NodeUnderTest, name: pb.PendingRef, how: pb.TransactionEnd.ValueType
) -> int:
    """End a transaction; return the outcome."""
    return (await end(node, name, how)).refusal.outcome


async def test_a_repeated_ack_is_ok_however_late(tmp_path: Path) -> None:
    """The first try may have been carried out: the handle's end says nothing about that."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"acked", b"leased"], queue=0)
        acked, leased = (lease_of(one) for one in (await node.pop(queue=0)).messages)
        assert list((await node.ack(acked)).outcomes) == [pb.OUTCOME_OK]
        let_pass(node, 60)
        assert list((await node.ack(acked)).outcomes) == [pb.OUTCOME_INVALID_HANDLE]
        group = pb.GroupLeases(raft_group=GROUP, leases=[acked, leased], repeated=True)
        response = await node.rpc.ack(pb.AckRequest(groups=[group]), CONTEXT)
        (outcomes,) = response.groups
        assert list(outcomes.outcomes) == [pb.OUTCOME_OK, pb.OUTCOME_INVALID_HANDLE]
