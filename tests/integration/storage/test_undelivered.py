"""Undelivered messages: no absent client takes them, and no attempt is lost (rule 36)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft.replica.replica import Replica
from strata_storage.base.errors import Refused
from strata_storage.reads.reader import Location, MessageReader
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    NodeUnderTest,
    lease_of,
    node_under_test,
    pop_request,
)

BROKER, CLIENT = 0xB0B, 5


async def report(node: NodeUnderTest, **fields: Sequence[int]) -> None:
    """Report clients as another broker does, which is there all the time."""
    request = pb.ReportClientsRequest(broker_boot_id=77, full=True, **fields)  # type: ignore[arg-type]
    await node.rpc.report_clients(request, CONTEXT)


async def expire(node: NodeUnderTest, seconds: float = 0.0) -> None:
    """Let time pass and the timer run."""
    node.clock.advance(seconds)
    (engine,) = node.app.node.engines()
    await node.app.node.expire_once(engine, engine.leading())


async def lose_broker(node: NodeUnderTest) -> None:
    """Let the broker's watch stream end, and so much time pass that it is lost."""
    request = pb.WatchRequest(broker_boot_id=BROKER)
    watch = cast(AsyncGenerator[pb.WatchResponse, None], node.rpc.watch(request, CONTEXT))
    async with aclosing(watch):
        await anext(watch)
    node.clock.advance(3.0)


async def parked(node: NodeUnderTest) -> None:
    """Wait until a pop waits for messages."""
    (engine,) = node.app.node.engines()
    await until(lambda: len(engine.leading().waiters))


async def attempts_of_the_next_pop(node: NodeUnderTest) -> list[int]:
    """Pop by a broker and a client that are there, with one attempt in all."""
    popped = await node.pop(max_attempts=1, broker_boot_id=77)
    return [message.attempt_count for message in popped.messages]


async def test_a_pop_whose_broker_is_lost_takes_nothing(tmp_path: Path) -> None:
    """It waits on; what comes is for the pop that waits behind it."""
    async with node_under_test(tmp_path) as node:
        request = pop_request(wait_ms=60_000, max_attempts=1)
        request.broker_boot_id = BROKER
        nobodys = asyncio.ensure_future(node.rpc.pop(request, CONTEXT))
        await parked(node)
        await lose_broker(node)
        await node.append([b"a"])
        assert not (await nobodys).messages
        assert await attempts_of_the_next_pop(node) == [1]


async def test_a_pop_whose_client_said_goodbye_takes_nothing(tmp_path: Path) -> None:
    """Nor does one whose client nobody reports."""
    async with node_under_test(tmp_path) as node:
        for seconds, fields in ((0, {"gone": [CLIENT]}), (15, {})):
            request = pop_request(auto_renew=True, holder=CLIENT, wait_ms=60_000, max_attempts=1)
            nobodys = asyncio.ensure_future(node.rpc.pop(request, CONTEXT))
            await parked(node)
            await report(node, **fields)
            node.clock.advance(seconds)
            await node.append([b"a"])
            assert not (await nobodys).messages
            assert await attempts_of_the_next_pop(node) == [1]


async def test_leases_that_waited_in_the_log_for_a_lost_broker_are_given_back(
    tmp_path: Path,
) -> None:
    """The entry was committed when nobody was there any more."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        proposed, go_on = asyncio.Event(), asyncio.Event()
        propose = Replica.propose

        def slowly(self: Replica, payload: tuple[bytes, ...]) -> asyncio.Future[int]:
            committed = propose(self, payload)

            async def later() -> int:
                proposed.set()
                await go_on.wait()
                return await committed

            return asyncio.ensure_future(later())

        request = pop_request(max_attempts=1)
        request.broker_boot_id = BROKER
        with patch.object(Replica, "propose", slowly):
            nobodys = asyncio.ensure_future(node.rpc.pop(request, CONTEXT))
            await proposed.wait()
        await lose_broker(node)
        go_on.set()
        assert not (await nobodys).messages
        assert await attempts_of_the_next_pop(node) == [1]


async def test_a_message_that_a_lost_broker_took_is_no_dead_letter(tmp_path: Path) -> None:
    """Nor if the lease has an end of its own: when that is over, it is the first attempt again."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        popped = await node.pop(max_attempts=1, broker_boot_id=BROKER, invisible_ms=10_000)
        assert len(popped.messages) == 1
        await lose_broker(node)
        await expire(node)
        await expire(node, 8)
        assert await attempts_of_the_next_pop(node) == [1]


async def test_a_release_behind_its_clients_goodbye_is_in_time(tmp_path: Path) -> None:
    """The lease waits a moment for it; without one the attempt counts."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        held = {"auto_renew": True, "holder": CLIENT, "max_attempts": 1}
        lease = lease_of((await node.pop(**held)).messages[0])
        await report(node, gone=[CLIENT])
        await expire(node)
        release = pb.ReleaseRequest(raft_group=GROUP, undelivered=[lease])
        assert (await node.rpc.release(release, CONTEXT)).released == 1
        again = await node.pop(**held)
        assert [message.attempt_count for message in again.messages] == [1]
        await report(node, gone=[CLIENT])
        await expire(node, 1)
        await expire(node)
        assert await attempts_of_the_next_pop(node) == []
        (engine,) = node.app.node.engines()
        assert engine.leading().sets.find((5, 7, 0)) is not None


async def test_what_could_not_be_read_loses_no_attempt(tmp_path: Path) -> None:
    """A reader with too much to do, a disk that does not read: nobody was given anything."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])

        async def busy(self: MessageReader, places: Sequence[Location], group: int = 0) -> object:
            raise Refused(pb.OUTCOME_OVERLOADED, "too many reads")

        with patch.object(MessageReader, "read", busy):
            refused = await node.rpc.pop(pop_request(max_attempts=1), CONTEXT)
        assert refused.refusal.outcome == pb.OUTCOME_OVERLOADED
        popped = await node.pop(max_attempts=1)
        assert [message.attempt_count for message in popped.messages] == [1]
        release = pb.ReleaseRequest(raft_group=GROUP, undelivered=[lease_of(popped.messages[0])])
        assert (await node.rpc.release(release, CONTEXT)).released == 1

        async def failing(
            self: MessageReader, places: Sequence[Location], group: int = 0
        ) -> list[bytes | None]:
            return [None] * len(places)

        for auto_renew in (False, True):
            request = pop_request(max_attempts=1, auto_renew=auto_renew, holder=CLIENT)
            with patch.object(MessageReader, "read", failing):
                refused = await node.rpc.pop(request, CONTEXT)
            assert refused.refusal.outcome == pb.OUTCOME_CORRUPT
            assert await attempts_of_the_next_pop(node) == [], "it is put off"
            await expire(node, 61)
        assert await attempts_of_the_next_pop(node) == [1]


async def test_nothing_overtakes_an_unreadable_message_of_its_message_group(
    tmp_path: Path,
) -> None:
    """Later ones wait behind it; other message groups go on, and no attempt counts."""
    async with node_under_test(tmp_path) as node:
        for body, message_group in ((b"a0", "a"), (b"a1", "a"), (b"b0", "b"), (b"a2", "a")):
            await node.append([body], message_groups=[message_group])
        read = MessageReader.read

        async def damaged(
            self: MessageReader, places: Sequence[Location], group: int = 0
        ) -> Sequence[bytes | None]:
            found = await read(self, places, group)
            return [None if message == b"a1" else message for message in found]

        with patch.object(MessageReader, "read", damaged):
            first = await node.pop(fifo=True, attempt=9)
        assert [message.message for message in first.messages] == [b"a0", b"b0"]
        await node.ack(*map(lease_of, first.messages))
        assert not (await node.pop(fifo=True, attempt=10)).messages
        await expire(node, 61)
        again = await node.pop(fifo=True, attempt=11)
        assert [(each.message, each.attempt_count) for each in again.messages] == [
            (b"a1", 1),
            (b"a2", 1),
        ]


@pytest.mark.parametrize(("auto_renew", "ended"), [(False, False), (True, False), (False, True)])
async def test_what_no_replica_could_read_is_put_off_and_loses_no_attempt(
    tmp_path: Path, *, auto_renew: bool, ended: bool
) -> None:
    """Its broker says so, also if the lease has ended meanwhile and the message is used up."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        only = {"max_attempts": 1, "auto_renew": auto_renew, "holder": CLIENT}
        popped = await node.pop(**only, places_only=True, invisible_ms=30_000)
        if ended:
            node.clock.advance(31.0)
            assert await attempts_of_the_next_pop(node) == [], "it is used up"
        release = pb.ReleaseRequest(raft_group=GROUP, unreadable=[lease_of(popped.messages[0])])
        assert (await node.rpc.release(release, CONTEXT)).released == 1
        assert (await node.rpc.release(release, CONTEXT)).released == 0
        if not ended:
            assert await attempts_of_the_next_pop(node) == [], "it is put off"
            await expire(node, 61.0 if auto_renew else 31.0)
        assert await attempts_of_the_next_pop(node) == [1]


async def test_what_is_behind_an_unreadable_message_waits_for_it(tmp_path: Path) -> None:
    """The rest of its message group is given back at once, and is delivered with it, in order."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a", b"b", b"c"])
        popped = await node.pop(fifo=True, attempt=9, max_attempts=1, invisible_ms=30_000)
        unread, *behind = [lease_of(message) for message in popped.messages]
        for request in (
            pb.ReleaseRequest(raft_group=GROUP, undelivered=behind),
            pb.ReleaseRequest(raft_group=GROUP, unreadable=[unread]),
        ):
            await node.rpc.release(request, CONTEXT)
        assert not (await node.pop(fifo=True, attempt=10, max_attempts=1)).messages
        await expire(node, 31.0)
        again = await node.pop(fifo=True, attempt=11, max_attempts=1)
        assert [(one.message, one.attempt_count) for one in again.messages] == [
            (b"a", 1),
            (b"b", 1),
            (b"c", 1),
        ]


async def test_a_leader_that_stood_still_lets_clients_keep_their_leases(tmp_path: Path) -> None:
    """It read no report for longer than a client may be silent; then the client is silent."""
    async with node_under_test(tmp_path) as node:
        node.app.node.brokers.stalls._time_s = node.clock.monotonic_s
        await node.append([b"a"])
        for _ in range(20):
            await expire(node, 1.0)
            await report(node, live=[CLIENT])
        await node.pop(auto_renew=True, holder=CLIENT, broker_boot_id=77)
        node.app.node.brokers.stalls.turn()
        await expire(node, 60.0)
        assert await attempts_of_the_next_pop(node) == []
        node.app.node.brokers.stalls.turn()
        for _ in range(16):
            await expire(node, 1.0)
            node.app.node.brokers.stalls.turn()
        assert await attempts_of_the_next_pop(node) == [2]


async def test_a_new_leader_that_stood_still_waits_for_the_brokers_reports(tmp_path: Path) -> None:
    """It knows no client yet: the time in which nobody could report does not count."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        await node.pop(auto_renew=True, holder=CLIENT, broker_boot_id=77)
    async with node_under_test(tmp_path) as node:
        node.app.node.brokers.stalls._time_s = node.clock.monotonic_s
        node.app.node.brokers.stalls.turn()
        await expire(node)
        await expire(node, 60.0)
        assert await attempts_of_the_next_pop(node) == []
        await report(node, live=[CLIENT])
        for _ in range(20):
            node.app.node.brokers.stalls.turn()
            await expire(node, 1.0)
        assert await attempts_of_the_next_pop(node) == [2]
