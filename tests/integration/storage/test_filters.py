"""Pops with filters through the storage service: what is given, passed over, and written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2 as wire
from strata.storage.v1 import storage_pb2 as pb
from strata_broker.base.wire import stored_message
from strata_mq.traces.delivery import store_fragment
from strata_runtime.metrics import Metrics
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    small_config,
)

LOOK = EngineOptions().pop_scan_offsets
# As many small messages as an append batch has room for.
BATCH = 2_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


def tags(expression: str) -> pb.Filter:
    return pb.Filter(kind=pb.FILTER_KIND_TAG, expression=expression)


def sql(expression: str) -> pb.Filter:
    return pb.Filter(kind=pb.FILTER_KIND_SQL, expression=expression)


def stored(name: str, tag: str = "", **properties: str) -> bytes:
    """Return a message as the broker stores it; its body is its name."""
    rest = wire.Message(user_properties=properties, body=name.encode())
    system = wire.SystemProperties(tag=tag or None, message_id=name)
    return stored_message(
        system.SerializeToString(), store_fragment("A" * 32), rest.SerializeToString()
    )


def names(response: pb.PopResponse) -> list[str]:
    assert not response.HasField("refusal"), response.refusal
    return [name_of(message.message) for message in response.messages]


def name_of(message: bytes) -> str:
    return wire.Message.FromString(message).body.decode()


async def append_amounts(node: NodeUnderTest, *amounts: int, boot_id: int = 1) -> None:
    """Append messages named by their amounts."""
    bodies = [stored(str(amount), amount=str(amount)) for amount in amounts]
    await node.append(bodies, boot_id=boot_id)


async def append_many(node: NodeUnderTest, count: int, wanted: set[int]) -> None:
    """Append messages 0, 1, ... to queue 0; the wanted ones have tag and property `hit`."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        hits = ["hit" if number in wanted else "miss" for number in numbers]
        bodies = [
            stored(str(number), hit, kind=hit) for number, hit in zip(numbers, hits, strict=True)
        ]
        result = await node.append(bodies, tags=hits)
        assert result.parts[0].outcome == pb.OUTCOME_OK


async def consumer(node: NodeUnderTest) -> pb.ConsumerQueueState:
    """Return where the consumer group is on queue 0."""
    request = pb.GetConsumerStateRequest(
        raft_group=GROUP, consumer_group_id=5, topic=TOPIC, queues=[0]
    )
    (state,) = (await node.rpc.get_consumer_state(request, CONTEXT)).queues
    return state


def applied(node: NodeUnderTest) -> int:
    return node.app.node.engine(GROUP).machine.state.raft_index


async def tick(node: NodeUnderTest, seconds: float) -> None:
    """Let time pass and the leader do what time demands."""
    node.clock.advance(seconds)
    engine = node.app.node.engine(GROUP)
    assert engine.leader is not None
    await node.app.node.expire_once(engine, engine.leader)
    await node.rpc.flush(pb.FlushRequest(), CONTEXT)
    await engine.barrier()


# Given messages ---------------------------------------------------------------------------------


async def test_a_tag_filter_passes_over_other_messages_without_a_lease(
    node: NodeUnderTest,
) -> None:
    """A message that does not match is consumed for this group; other groups see it."""
    await node.append([stored("a", "x"), stored("b", "y"), stored("c", "x")], tags=["x", "y", "x"])
    assert names(await node.pop(filter=tags("y || z"))) == ["b"]
    assert names(await node.pop()) == []
    assert sorted(names(await node.pop(consumer_group_id=6))) == ["a", "b", "c"]


async def test_a_tag_that_only_shares_a_hash_is_consumed(node: NodeUnderTest) -> None:
    """The text on the message decides; the twin is neither given nor does it stay leased."""
    await node.append([stored("twin", "z"), stored("right", "y")], tags=["y", "y"])
    popped = await node.pop(filter=tags("y"), max_messages=1, wait_ms=1_000)
    assert names(popped) == ["right"]
    state = await consumer(node)
    assert (state.cursor, state.head, state.in_flight) == (1, 2, 1)


async def test_a_sql_filter_gives_what_is_true(node: NodeUnderTest) -> None:
    """FALSE, NULL and what cannot be compared are passed over, in one entry with the take."""
    await append_amounts(node, 5, 50, 500)
    await node.append([stored("none"), stored("text", amount="many"), stored("60", amount="60")])
    entries = applied(node)
    popped = await node.pop(filter=sql("amount > 10 AND amount < 100"))
    assert names(popped) == ["50", "60"]
    state = await consumer(node)
    assert (state.head, state.in_flight) == (6, 2)
    assert applied(node) == entries + 1
    await node.ack(*map(lease_of, popped.messages))
    assert (await consumer(node)).cursor == 6
    assert len(names(await node.pop(consumer_group_id=6))) == 6


async def test_a_bad_filter_is_refused(node: NodeUnderTest) -> None:
    """Brokers check before; storage says INVALID and where the expression is wrong."""
    for bad in (sql("a >"), tags("||"), pb.Filter(kind=9, expression="x")):  # type: ignore[arg-type]
        refusal = (await node.pop(filter=bad)).refusal
        assert refusal.outcome == pb.OUTCOME_INVALID
    assert "character 4" in (await node.pop(filter=sql("a >"))).refusal.reason


async def test_sql_keeps_the_order_of_message_groups(node: NodeUnderTest) -> None:
    """FIFO: only messages that match hold their message group up."""
    bodies = [stored("a1", n="1"), stored("a2", n="2"), stored("b1", n="1"), stored("a3", n="3")]
    await node.append(bodies, message_groups=["a", "a", "b", "a"])
    wanted = sql("n <> '1'")
    first = await node.pop(fifo=True, filter=wanted, max_messages=1)
    assert names(first) == ["a2"]
    assert names(await node.pop(fifo=True, filter=wanted)) == []
    await node.ack(*map(lease_of, first.messages))
    assert names(await node.pop(fifo=True, filter=wanted)) == ["a3"]
    assert (await consumer(node)).cursor == 3


async def test_a_message_comes_again_to_the_filter_it_matched(node: NodeUnderTest) -> None:
    """A lease that runs out is given again, with the next attempt."""
    await append_amounts(node, 5, 50)
    assert names(await node.pop(filter=sql("amount > 10"), invisible_ms=1_000)) == ["50"]
    node.clock.advance(2)
    again = await node.pop(filter=sql("amount > 10"))
    assert names(again) == ["50"]
    assert again.messages[0].attempt_count == 2


@pytest.mark.parametrize("changed", [sql("amount > 100"), tags("other")])
async def test_a_changed_filter_holds_for_what_was_leased_before(
    node: NodeUnderTest, changed: pb.Filter
) -> None:
    """A message that the group does not want any more when it comes again is consumed."""
    await append_amounts(node, 5, 50, 500)
    assert names(await node.pop(filter=sql("amount > 10"), invisible_ms=1_000)) == ["50", "500"]
    node.clock.advance(2)
    wanted = ["500"] if changed.kind == pb.FILTER_KIND_SQL else []
    popped = await node.pop(filter=changed)
    assert names(popped) == wanted
    await node.ack(*map(lease_of, popped.messages))
    state = await consumer(node)
    assert (state.cursor, state.in_flight, state.waiting) == (3, 0, 0)


async def test_a_changed_filter_frees_blocked_message_groups(node: NodeUnderTest) -> None:
    """FIFO: a blocked message that is not wanted any more makes way for the next one."""
    bodies = [stored(f"a{n}", n=str(n)) for n in range(1, 5)]
    await node.append(bodies, message_groups=["a"] * 4)
    everything = await node.pop(fifo=True, max_messages=1)
    assert names(everything) == ["a1"]
    assert names(await node.pop(fifo=True)) == []
    parked = asyncio.ensure_future(node.pop(fifo=True, filter=sql("n > 3"), wait_ms=600_000))
    await node.until_parked(1)
    await node.ack(*map(lease_of, everything.messages))
    assert names(await asyncio.wait_for(parked, 60)) == ["a4"]


# How it gets there ------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [tags("hit"), sql("kind = 'hit'"), sql("TAGS = 'hit'")])
async def test_rare_messages_are_found_and_others_get_their_turn(
    node: NodeUnderTest, wanted: pb.Filter
) -> None:
    """A pop goes through a long backlog in turns, each at most one look long, to the match."""
    count = 3 * LOOK + 5
    await append_many(node, count, {count - 1})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.ensure_future(others())
    popped = await node.pop(filter=wanted, wait_ms=600_000)
    ticking.cancel()
    assert names(popped) == [str(count - 1)]
    assert turns >= 3
    assert (await consumer(node)).head == count


async def test_a_pop_fills_its_answer_from_a_sparse_queue(node: NodeUnderTest) -> None:
    """With one match in a hundred one pop still gives as many as it may."""
    await append_many(node, LOOK, set(range(0, LOOK, 100)))
    popped = await node.pop(filter=tags("hit"), max_messages=32)
    assert names(popped) == [str(number) for number in range(0, 3_200, 100)]


async def test_a_pop_that_may_not_wait_keeps_what_it_passed(node: NodeUnderTest) -> None:
    """Without time it gives nothing after one look, and the next one goes on from there."""
    count = 2 * LOOK
    await append_many(node, count, {count - 1})
    assert names(await node.pop(filter=tags("hit"))) == []
    assert LOOK <= (await consumer(node)).head < count
    assert names(await node.pop(filter=tags("hit"))) == [str(count - 1)]


async def test_parked_pops_are_woken_by_what_they_want(node: NodeUnderTest) -> None:
    """Appends that nobody wants cost no entry of their own; the match is given at once."""
    parked = asyncio.ensure_future(node.pop(filter=sql("amount > 10"), wait_ms=600_000))
    await node.until_parked(1)
    entries = applied(node)
    for _ in range(20):
        await append_amounts(node, 1, 2)
        await asyncio.sleep(0.01)

    async def has_passed_all() -> bool:
        return (await consumer(node)).head == 40

    await until(has_passed_all)
    assert not parked.done()
    assert applied(node) == entries + 20
    await append_amounts(node, 50)
    assert names(await asyncio.wait_for(parked, 60)) == ["50"]
    assert (await consumer(node)).head == 41


async def test_the_way_over_unwanted_messages_survives_a_restart(tmp_path: Path) -> None:
    """It is written after a second; before that a restart only looks again."""
    async with node_under_test(tmp_path) as node:
        await append_amounts(node, 1, 2, 3)
        assert names(await node.pop(filter=sql("amount > 10"))) == []
        await tick(node, 2)
        await append_amounts(node, 4)
        assert names(await node.pop(filter=sql("amount > 10"))) == []
        assert (await consumer(node)).head == 4
    async with node_under_test(tmp_path) as node:
        assert (await consumer(node)).head == 3
        await append_amounts(node, 50, boot_id=2)
        assert names(await node.pop(filter=sql("amount > 3"))) == ["4", "50"]


async def test_pops_at_once_share_the_work_and_the_messages(node: NodeUnderTest) -> None:
    """Ten consumers at once get every match once, whatever was read ahead for whom."""
    hits = set(range(0, 2_000, 7))
    await append_many(node, 2_000, hits)
    pops = [node.pop(filter=sql("kind = 'hit'"), max_messages=32, wait_ms=100) for _ in range(10)]
    given = [int(name) for popped in await asyncio.gather(*pops) for name in names(popped)]
    assert len(given) == len(set(given))
    assert set(given) == hits


async def test_a_cancelled_pop_leaves_its_turn_to_another(node: NodeUnderTest) -> None:
    """A client that goes away amid a long backlog does not leave the others parked."""
    count = 3 * LOOK
    await append_many(node, count, {count - 1})
    wanted = tags("hit")
    await node.pop(filter=wanted)
    gone = asyncio.ensure_future(node.pop(filter=wanted, wait_ms=600_000))
    stays = asyncio.ensure_future(node.pop(filter=wanted, wait_ms=600_000))
    await asyncio.sleep(0)
    gone.cancel()
    assert names(await asyncio.wait_for(stays, 60)) == [str(count - 1)]


async def test_a_lost_leadership_ends_the_way_over_a_backlog(node: NodeUnderTest) -> None:
    """A pop between two looks is refused like one that is parked, and so is one that parks then."""
    await append_many(node, 3 * LOOK, set())
    leader = node.app.node.engine(GROUP).leader
    assert leader is not None
    popping = asyncio.ensure_future(node.pop(filter=tags("hit"), wait_ms=600_000))

    async def has_looked() -> bool:
        return (await consumer(node)).head > 0

    await until(has_looked, step_s=0)
    leader.waiters.refuse_all(Refused(pb.OUTCOME_NOT_LEADER, "gone"))
    assert (await asyncio.wait_for(popping, 60)).refusal.outcome == pb.OUTCOME_NOT_LEADER
    assert (await consumer(node)).head < 3 * LOOK


async def test_fetch_takes_filters_too(node: NodeUnderTest) -> None:
    """Matching messages are given, and the place to go on lies behind those passed over."""
    await append_amounts(node, 5, 50, 500, 1)
    for wanted, expected in ((sql("amount > 10"), ["50", "500"]), (tags("x"), [])):
        request = pb.FetchRequest(
            raft_group=GROUP, topic_id=7, queue=0, max_messages=10, filter=wanted
        )
        fetched = await node.rpc.fetch(request, CONTEXT)
        assert [name_of(message.message) for message in fetched.messages] == expected
        assert fetched.resume_offset == 4


# Costs ------------------------------------------------------------------------------------------

# Two hundred looks at 8,000 characters: about 25,000 steps for each message.
COSTLY = " OR ".join(f"text CONTAINS 'no {number}'" for number in range(200))
TEXT = "x" * 8_000
MESSAGE_STEPS = 200 * len(TEXT) // 64


async def append_texts(node: NodeUnderTest, count: int, **last: str) -> None:
    """Append messages that are costly to filter; the last one has these properties, too."""
    bodies = [stored(str(at), text=TEXT) for at in range(count - 1)]
    await node.append([*bodies, stored(str(count - 1), text=TEXT, **last)])


async def test_costly_filters_leave_others_their_turns(tmp_path: Path) -> None:
    """However many receives filter at once, a turn of the loop has one slice of their work."""
    config = small_config(filter_steps_per_turn=5_000)
    async with node_under_test(tmp_path, config=config) as node:
        await append_texts(node, 20, last="yes")
        loop_turns = 0

        async def others() -> None:
            nonlocal loop_turns
            while True:
                await asyncio.sleep(0)
                loop_turns += 1

        ticking = asyncio.ensure_future(others())
        costly = [
            asyncio.ensure_future(
                node.pop(
                    consumer_group_id=group,
                    filter=sql(f"{COSTLY} OR last = 'yes'"),
                    wait_ms=600_000,
                )
            )
            for group in range(10, 20)
        ]
        await asyncio.sleep(0)
        assert len(names(await node.pop(max_messages=32))) == 20
        assert not any(pop.done() for pop in costly)
        assert [names(pop) for pop in await asyncio.gather(*costly)] == [["19"]] * 10
        ticking.cancel()
    assert loop_turns >= 10 * 20 * MESSAGE_STEPS // (5_000 + 24 * len(TEXT) // 64)


async def test_a_receive_whose_filter_cost_too_much_ends_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    """It ends empty before its time, where it is; what it passed is passed."""
    metrics = Metrics()
    config = small_config(filter_steps_per_receive=4 * MESSAGE_STEPS)
    async with node_under_test(tmp_path, config=config, metrics=metrics) as node:
        await append_texts(node, 10, last="yes")
        wanted = sql(f"{COSTLY} OR last = 'yes'")
        heads = []
        popped: list[str] = []
        while not popped:
            popped = names(await node.pop(filter=wanted, wait_ms=600_000))
            heads.append((await consumer(node)).head)
        assert (popped, heads) == (["9"], [4, 8, 10])
        await tick(node, 1)
        scraped = metrics.render().decode()
    assert "strata_storage_filter_limited_total 2.0" in scraped
    steps = re.search(r"strata_storage_filter_steps_total (\d\S*)", scraped)
    assert steps is not None
    assert float(steps[1]) >= 9 * MESSAGE_STEPS


async def test_a_receive_gives_what_it_found_before_its_filter_cost_too_much(
    tmp_path: Path,
) -> None:
    """It does not go on to fill its answer."""
    config = small_config(filter_steps_per_receive=3 * MESSAGE_STEPS)
    async with node_under_test(tmp_path, config=config) as node:
        await node.append([stored("first", text=TEXT, last="yes")])
        await append_texts(node, 10, last="yes")
        wanted = sql(f"{COSTLY} OR last = 'yes'")
        assert names(await node.pop(filter=wanted, max_messages=8)) == ["first"]
        assert (await consumer(node)).head <= 4


async def test_a_fetch_ends_where_its_filter_cost_too_much(tmp_path: Path) -> None:
    """It says where the next one goes on."""
    metrics = Metrics()
    config = small_config(filter_steps_per_receive=4 * MESSAGE_STEPS)
    async with node_under_test(tmp_path, config=config, metrics=metrics) as node:
        await append_texts(node, 10, last="yes")
        offset = 0
        found: list[str] = []
        ends: list[int] = []
        while not found:
            request = pb.FetchRequest(
                raft_group=GROUP,
                topic_id=7,
                queue=0,
                offset=offset,
                max_messages=32,
                filter=sql(f"{COSTLY} OR last = 'yes'"),
            )
            fetched = await node.rpc.fetch(request, CONTEXT)
            assert not fetched.HasField("refusal")
            found = [name_of(message.message) for message in fetched.messages]
            offset = fetched.resume_offset
            ends.append(offset)
    assert (found, ends) == (["9"], [4, 8, 10])
    assert "strata_storage_filter_limited_total 2.0" in metrics.render().decode()
