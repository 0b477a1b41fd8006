"""A call that sets a FIFO message free wakes the pop that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    NodeUnderTest,
    lease_of,
    node_under_test,
    small_config,
)


@pytest.fixture(params=[64 * 1024 * 1024, 0], ids=["recent", "read"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    """A node that has payloads in memory, and one that reads them from disk."""
    async with node_under_test(
        tmp_path, config=small_config(recent_bytes=request.param)
    ) as running:
        yield running


async def free(node: NodeUnderTest, how: str, lease: pb.LeaseRef) -> None:
    """Take the message before away, in one of the ways there are."""
    if how == "ack":
        assert (await node.ack(lease)).outcomes == [pb.OUTCOME_OK]
    elif how == "forward":
        request = pb.ForwardToDeadLetterRequest(
            raft_group=GROUP, lease=lease, dead_letter_topic_id=DEAD_LETTER_TOPIC_ID
        )
        response = await node.rpc.forward_to_dead_letter(request, CONTEXT)
        assert not response.HasField("refusal")
    else:
        node.clock.advance(40)
        engine = node.app.node.engine(GROUP)
        await node.app.node.expire_once(engine, engine.leading())


@pytest.mark.parametrize("how", ["ack", "forward", "exhausted"])
async def test_a_parked_pop_gets_the_next_message_of_a_message_group(
    node: NodeUnderTest, how: str
) -> None:
    """Whether the one before was consumed or went to the dead-letter topic, by whomever."""
    await node.append([b"a1", b"a2"], message_groups=["a", "a"])
    first = await node.pop(fifo=True, max_messages=1, max_attempts=1)
    assert [message.message for message in first.messages] == [b"a1"]
    pop = asyncio.ensure_future(node.pop(fifo=True, wait_ms=600_000, max_attempts=1))
    await until(lambda: len(node.app.node.engine(GROUP).leading().waiters))
    await free(node, how, lease_of(first.messages[0]))
    second = await asyncio.wait_for(pop, 60)
    assert [message.message for message in second.messages] == [b"a2"]
