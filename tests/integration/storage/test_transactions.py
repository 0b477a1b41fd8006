"""Half messages of one node: invisible until committed, checked, given up, over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import PartKind
from strata_mq.layout.hashing import pack_message_id
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    node_under_test,
    small_config,
)
from tests.integration.storage.waiting import (
    append,
    end,
    end_all,
    half,
    let_pass,
    pop_bodies,
    waiting_batch,
)

COMMIT, ROLLBACK, GIVE_UP = (
    pb.TRANSACTION_END_COMMIT,
    pb.TRANSACTION_END_ROLLBACK,
    pb.TRANSACTION_END_GIVE_UP,
)
BROKER = 77
DEAD_LETTERS = pb.TopicRef(topic_id=DEAD_LETTER_TOPIC_ID, slot_base=0, queue_count=0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    config = small_config(max_transaction_checks=2)
    async with node_under_test(tmp_path, config=config) as made:
        yield made


class Broker:
    """A broker that holds producers: reports their topics and takes checks off its stream."""

    def __init__(
        self, node: NodeUnderTest, boot_id: int = BROKER, *, reports_checks: bool = False
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        request = pb.WatchRequest(broker_boot_id=boot_id, reports_checks=reports_checks)
        self._stream = node.rpc.watch(request, CONTEXT)

    async def __aenter__(self) -> Broker:
        assert list((await anext(self._stream)).led_groups) == [GROUP]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]

    async def report(self, *topic_ids: int, full: bool = True) -> None:
        request = pb.ReportClientsRequest(
            broker_boot_id=self._boot_id,
            full=full,
            producer_topic_ids=topic_ids,
            producer_topics_set=bool(topic_ids),
        )
        await self._node.rpc.report_clients(request, CONTEXT)

    async def after(self, seconds: float) -> None:
        """Let time pass; the broker goes on reporting its one topic."""
        self._node.clock.advance(seconds)
        await self.report(TOPIC.topic_id)
        let_pass(self._node, 0)

    async def checks(self, count: int) -> list[pb.TransactionCheck]:
        """Return the next checks."""
        checks: list[pb.TransactionCheck] = []
        async with asyncio.timeout(30):
            while len(checks) < count:
                checks += (await anext(self._stream)).checks
        assert len(checks) == count
        return checks


async def test_a_half_message_is_invisible_until_it_is_committed(node: NodeUnderTest) -> None:
    """The commit says where it is; a pop that waited gets it; a repeat says the same."""
    name = await half(node, b"half")
    assert await pop_bodies(node) == []
    waiting = asyncio.ensure_future(pop_bodies(node, wait_ms=60_000))
    await asyncio.sleep(0.02)
    first = await end(node, name, COMMIT)
    assert not first.refusal.outcome
    assert await waiting == [b"half"]
    assert await end(node, name, COMMIT) == first
    late = await end(node, name, ROLLBACK)
    assert late.refusal.outcome == pb.OUTCOME_INVALID_HANDLE


async def test_a_half_message_that_is_rolled_back_never_comes(node: NodeUnderTest) -> None:
    """A repeated rollback is fine, a commit is refused."""
    name = await half(node, b"half")
    for _ in range(2):
        assert not (await end(node, name, ROLLBACK)).refusal.outcome
    assert (await end(node, name, COMMIT)).refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    assert await pop_bodies(node, wait_ms=50) == []


async def test_several_transactions_end_together(node: NodeUnderTest) -> None:
    """Each has its own outcome, in one entry of the log; a repeat says the same."""
    names = [await half(node, b"half %d" % number) for number in range(4)]
    gone = pb.PendingRef(index=names[0].index, ordinal=99)
    hows = [COMMIT, ROLLBACK, COMMIT, COMMIT, ROLLBACK]
    machine = node.app.node.engine(GROUP).machine
    before = machine.applied_index()
    first = await end_all(node, zip([*names, gone], hows, strict=True))
    assert machine.applied_index() == before + 1
    outcomes = [half_outcome.outcome for half_outcome in first.halves]
    assert outcomes == [pb.OUTCOME_OK] * 4 + [pb.OUTCOME_INVALID_HANDLE]
    assert sorted(await pop_bodies(node)) == [b"half 0", b"half 2", b"half 3"]
    assert await end_all(node, zip([*names, gone], hows, strict=True)) == first
    others = await end_all(node, ((names[0], ROLLBACK), (names[1], COMMIT), (names[2], COMMIT)))
    assert [each.outcome for each in others.halves] == [
        pb.OUTCOME_INVALID_HANDLE,
        pb.OUTCOME_INVALID_HANDLE,
        pb.OUTCOME_OK,
    ]
    assert others.halves[2] == first.halves[2]


async def test_one_transaction_twice_in_a_call(node: NodeUnderTest) -> None:
    """Its producer has repeated the call; the first one decides."""
    name = await half(node, b"half")
    ended = await end_all(node, ((name, COMMIT), (name, COMMIT), (name, ROLLBACK)))
    assert [each.outcome for each in ended.halves] == [
        pb.OUTCOME_OK,
        pb.OUTCOME_OK,
        pb.OUTCOME_INVALID_HANDLE,
    ]
    assert ended.halves[0] == ended.halves[1]
    assert await pop_bodies(node) == [b"half"]


async def test_several_transactions_are_committed_or_rolled_back(node: NodeUnderTest) -> None:
    """Nothing else is done to several."""
    name = await half(node, b"half")
    refused = await end_all(node, ((name, COMMIT), (name, GIVE_UP)))
    assert refused.refusal.outcome == pb.OUTCOME_INVALID
    assert "committed or rolled back" in refused.refusal.reason
    assert (await end(node, name, ROLLBACK)).refusal.outcome == pb.OUTCOME_UNSPECIFIED


async def test_a_transaction_is_ended_by_the_id_of_its_message(node: NodeUnderTest) -> None:
    """A producer knows no more than that before the half is stored."""
    text = "7F" * 17
    due_ms = node.clock.wall_ms() + 6_000
    batch = waiting_batch([b"half"], [due_ms], kind=PartKind.HALF, ids=[pack_message_id(text)])
    await append(node, batch)
    request = pb.EndTransactionRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, end=COMMIT, message_id=text
    )
    for _ in range(2):
        response = await node.rpc.end_transaction(request, CONTEXT)
        assert not response.refusal.outcome, response.refusal.reason
    assert await pop_bodies(node) == [b"half"]
    request.message_id = "7E" * 17
    response = await node.rpc.end_transaction(request, CONTEXT)
    assert response.refusal.outcome == pb.OUTCOME_INVALID_HANDLE


async def test_what_ends_no_transaction_is_refused(node: NodeUnderTest) -> None:
    """An unknown name, no decision, no dead-letter topic."""
    name = await half(node, b"half")
    unknown = await end(node, pb.PendingRef(index=9_999), COMMIT)
    assert unknown.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    for how in (pb.TRANSACTION_END_UNSPECIFIED, GIVE_UP):
        assert (await end(node, name, how)).refusal.outcome == pb.OUTCOME_INVALID
    assert not (await end(node, name, COMMIT)).refusal.outcome


async def test_a_hundred_commits_at_once_are_all_delivered(node: NodeUnderTest) -> None:
    """They share entries, and every message has its own offset."""
    names = [await half(node, b"%d" % number) for number in range(100)]
    before = node.app.node.engine(GROUP).machine.applied_index()
    answers = await asyncio.gather(*(end(node, name, COMMIT) for name in names))
    assert not any(answer.refusal.outcome for answer in answers)
    assert len({(answer.queue, answer.offset) for answer in answers}) == 100
    assert node.app.node.engine(GROUP).machine.applied_index() - before < 10
    got = await pop_bodies(node, max_messages=1_000)
    assert sorted(got) == sorted(b"%d" % number for number in range(100))


# Checks -----------------------------------------------------------------------------------------


async def test_an_open_transaction_is_checked_and_given_up(node: NodeUnderTest) -> None:
    """So often as configured, then the broker is told that it is over and gives it up."""
    name = await half(node, b"half", 6_000)
    async with Broker(node) as broker:
        got = []
        for wait_s in (6.1, 30.1, 30.1):
            await broker.after(wait_s)
            (check,) = await broker.checks(1)
            assert (check.pending, check.topic_id, check.message) == (name, 7, b"half")
            got.append((check.check_count, check.exhausted))
        assert got == [(1, False), (2, False), (2, True)]
    fields = {"dead_letter_topic_id": DEAD_LETTER_TOPIC_ID}
    first = await end(node, name, GIVE_UP, **fields)
    assert (first.queue, first.offset) == (GROUP, 0)
    assert await end(node, name, GIVE_UP, **fields) == first
    assert (await end(node, name, COMMIT)).refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    assert await pop_bodies(node, wait_ms=50) == []
    assert await pop_bodies(node, topic=DEAD_LETTERS) == [b"half"]


async def test_a_check_waits_for_a_broker_with_a_producer(node: NodeUnderTest) -> None:
    """Nobody to ask does not count; reports without topics change none."""
    await half(node, b"half", 6_000)
    async with Broker(node) as broker:
        await broker.report(TOPIC.topic_id + 1)
        let_pass(node, 10)
        rows = node.app.node.engine(GROUP).machine.rows.pending
        now_ms = node.clock.wall_ms()
        await until(lambda: next(rows.keys()).due_ms > now_ms)
        await broker.after(30.1)
        (check,) = await broker.checks(1)
        assert check.check_count == 1


async def test_a_check_counts_when_the_broker_reports_that_a_producer_has_it(
    node: NodeUnderTest,
) -> None:
    """Reports about raft groups or halves that are not here are passed over."""
    name = await half(node, b"half", 6_000)
    got = []
    async with Broker(node, reports_checks=True) as broker:
        for wait_s, is_given in ((6.1, False), (30.1, True), (30.1, True), (30.1, False)):
            await broker.after(wait_s)
            (check,) = await broker.checks(1)
            got.append((check.check_count, check.exhausted, check.wants_report))
            if is_given:
                given = pb.GivenCheck(raft_group=GROUP, pending=name, check_count=check.check_count)
                others = (
                    pb.GivenCheck(raft_group=GROUP + 99, pending=name, check_count=1),
                    pb.GivenCheck(raft_group=GROUP, pending=pb.PendingRef(), check_count=1),
                )
                request = pb.ReportChecksRequest(checks=[*others, given])
                await node.rpc.report_checks(request, CONTEXT)
                rows = node.app.node.engine(GROUP).machine.rows.pending
                number = check.check_count
                await until(lambda: [row.checks for _, row in rows.scan()] == [number])  # noqa: B023
    assert got == [(1, False, True), (1, False, True), (2, False, True), (2, True, False)]


async def test_a_check_is_answered_by_whoever_was_asked(node: NodeUnderTest) -> None:
    """Two brokers hold producers: both are asked in turn; the answer ends the checks."""
    names = [await half(node, b"%d" % number, 1_000) for number in range(4)]
    async with Broker(node, 1) as first, Broker(node, 2) as second:
        for broker in (first, second):
            await broker.report(TOPIC.topic_id)
        let_pass(node, 1.1)
        asked = [*await first.checks(2), *await second.checks(2)]
        assert {check.pending.index for check in asked} == {name.index for name in names}
        for check in asked:
            assert not (await end(node, check.pending, COMMIT)).refusal.outcome
    assert len(await pop_bodies(node)) == 4


async def test_open_transactions_are_kept_over_a_restart(tmp_path: Path) -> None:
    """A half is committed, a counted check goes on, after the node came back."""
    async with node_under_test(tmp_path) as node:
        names = [await half(node, b"%d" % number, 1_000) for number in range(2)]
        async with Broker(node) as broker:
            await broker.after(1.1)
            await broker.checks(2)
            rows = node.app.node.engine(GROUP).machine.rows.pending
            await until(lambda: [row.checks for _, row in rows.scan()] == [1, 1])
        clock = node.clock
    async with node_under_test(tmp_path, clock=clock) as node:
        assert not (await end(node, names[0], COMMIT)).refusal.outcome
        async with Broker(node) as broker:
            await broker.after(30.1)
            (check,) = await broker.checks(1)
            assert (check.pending, check.check_count) == (names[1], 2)
        assert await pop_bodies(node) == [b"0"]
