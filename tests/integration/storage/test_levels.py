"""Pops of a topic of type PRIORITY: the highest level first, and what else has messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.pop_calls import PopCall
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
)
from tests.integration.storage.test_deliverables import BROKER, STREAM, told_by
from tests.integration.storage.test_filters import names, stored, tags
from tests.integration.storage.tiered_node import Tier, empty_log, fill, tiered_node, upload

TOP = TOPIC.queue_count - 1
ALL = pb.LevelRange(lowest=0, highest=TOP)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


async def send(node: NodeUnderTest, level: int, *bodies: str) -> None:
    """Append messages to the queue of a level."""
    result = await node.append([body.encode() for body in bodies], queue=level)
    assert [part.outcome for part in result.parts] == [pb.OUTCOME_OK]


def shown(response: pb.PopResponse) -> list[tuple[int, bytes]]:
    assert not response.HasField("refusal"), response.refusal
    return [(message.queue, message.message) for message in response.messages]


async def test_the_highest_level_comes_first(node: NodeUnderTest) -> None:
    """The order of the sends counts within a level only, and the answer is filled."""
    await send(node, 0, "a", "b")
    await send(node, 3, "c", "d")
    await send(node, 1, "e")
    first = await node.pop(levels=ALL, max_messages=1)
    assert shown(first) == [(3, b"c")]
    assert first.ready_levels == 0b1011
    await send(node, 2, "f")
    rest = await node.pop(levels=ALL)
    assert shown(rest) == [(3, b"d"), (2, b"f"), (1, b"e"), (0, b"a"), (0, b"b")]
    assert rest.ready_levels == 0


async def test_a_pop_takes_only_from_its_levels(node: NodeUnderTest) -> None:
    """It tells of the others, whether they are in memory or have not been looked at."""
    for level in range(4):
        await send(node, level, f"m{level}")
    none = await node.pop(levels=pb.LevelRange(lowest=4, highest=9))
    assert (shown(none), none.ready_levels, none.told_later) == ([], 0b1111, False)
    middle = await node.pop(levels=pb.LevelRange(lowest=1, highest=2))
    assert shown(middle) == [(2, b"m2"), (1, b"m1")]
    assert middle.ready_levels == 0b1001
    by_number = await node.pop(queue=3, levels=pb.LevelRange(lowest=0, highest=2))
    assert (shown(by_number), by_number.ready_levels) == ([], 0b1000)
    assert shown(await node.pop(queue=3, levels=ALL)) == [(3, b"m3")]


async def test_a_broker_is_told_of_what_comes_only_if_no_level_has_messages(
    node: NodeUnderTest,
) -> None:
    """A look at high levels that leaves a low one behind promises nothing."""
    await send(node, 0, "low")
    async with told_by(node) as told:
        asks = {"broker_boot_id": BROKER, "tell_stream": STREAM, "levels": ALL}
        high = pb.LevelRange(lowest=2, highest=TOP)
        looked = await node.pop(**{**asks, "levels": high})
        assert (shown(looked), looked.told_later, looked.ready_levels) == ([], False, 1)
        taken = await node.pop(**asks)
        assert (shown(taken), taken.told_later, taken.ready_levels) == ([(0, b"low")], True, 0)
        await send(node, 2, "new")
        assert len(await told.next()) == 1
        assert shown(await node.pop(**asks)) == [(2, b"new")]


@pytest.mark.parametrize("failure", [StateError("i/o"), Refused(pb.OUTCOME_WRONG_GROUP, "left")])
async def test_levels_that_nobody_knows_are_no_promise(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The messages that a pop took come nevertheless; the broker has to look again."""
    await send(node, 3, "a")
    (engine,) = node.app.node.engines()
    popper, calls = engine.leading().pops, 0
    queues_here = popper.order.queues_here

    def failing(call: PopCall) -> Sequence[int]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise failure
        return queues_here(call)

    async with told_by(node):
        monkeypatch.setattr(popper.order, "queues_here", failing)
        taken = await node.pop(broker_boot_id=BROKER, tell_stream=STREAM, levels=ALL)
    assert (shown(taken), taken.told_later, taken.ready_levels) == ([(3, b"a")], False, 0)


async def test_a_retry_keeps_its_level_and_a_dead_letter_leaves_it(node: NodeUnderTest) -> None:
    """Released, it comes before lower levels and after higher ones; given up, it is gone."""
    await send(node, 1, "again", "next")
    await send(node, 0, "low")
    for _ in range(3):
        popped = await node.pop(levels=ALL, max_messages=1)
        assert shown(popped) == [(1, b"again")]
        changed = await node.rpc.change_invisible(
            pb.ChangeInvisibleRequest(
                raft_group=1, lease=lease_of(popped.messages[0]), invisible_ms=0
            ),
            CONTEXT,
        )
        assert not changed.HasField("refusal"), changed.refusal
        await send(node, 3, "high")
        assert shown(await node.pop(levels=ALL, max_messages=1)) == [(3, b"high")]
    assert shown(await node.pop(levels=ALL)) == [(1, b"next"), (0, b"low")]
    letters: list[bytes] = []
    dead_letters = pb.TopicRef(topic_id=DEAD_LETTER_TOPIC_ID, dead_letter=True)
    async with asyncio.timeout(10):
        while not letters:
            found = await node.pop(topic=dead_letters, consumer_group_id=9, wait_ms=100)
            letters = [message.message for message in found.messages]
    assert letters == [b"again"]


async def test_a_filter_passes_over_a_level(node: NodeUnderTest) -> None:
    """It consumes messages that it does not let through; their level has nothing then."""
    for level, tag in ((3, "other"), (1, "wanted"), (0, "other")):
        await node.append([stored(f"{tag} {level}", tag)], queue=level, tags=[tag])
    popped = await node.pop(levels=ALL, filter=tags("wanted"))
    assert (names(popped), popped.ready_levels) == (["wanted 1"], 0)


async def test_without_levels_the_queues_take_turns(node: NodeUnderTest) -> None:
    """As before: a broker of an earlier version, or a topic of another type."""
    await send(node, 0, "a")
    await send(node, 3, "b")
    popped = await node.pop()
    assert sorted(shown(popped)) == [(0, b"a"), (3, b"b")]
    assert popped.ready_levels == 0


async def test_the_highest_level_comes_first_when_only_the_tier_has_messages(
    tmp_path: Path,
) -> None:
    """Levels of the tier and of the log are one order; also after a restart."""
    tier, clock = Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, random.Random(5), 26)
        await upload(node)
        await empty_log(node)
        levels = sorted(expected, reverse=True)
        # One message is left in the log, in a higher level.
        for level, body in ((TOP, b"last"), (levels[0], expected[levels[0]][0])):
            first = await node.pop(levels=ALL, max_messages=1)
            assert shown(first) == [(level, body)]
            await node.ack(*map(lease_of, first.messages))
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        node.sequence = 1_000
        # A new message of a level that is in the tier otherwise comes behind the older ones.
        await send(node, levels[-1], "new")
        got: list[tuple[int, bytes]] = []
        while True:
            popped = await node.pop(levels=ALL)
            if not shown(popped):
                break
            got += shown(popped)
            await node.ack(*map(lease_of, popped.messages))
    wanted = [(level, body) for level in levels for body in expected[level]]
    assert got == [*wanted[1:], (levels[-1], b"new")]
