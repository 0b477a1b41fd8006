"""Trims of one leader are decided one after the other, whoever leaves in the middle (rule 10)."""

from __future__ import annotations

import asyncio
import contextlib

from strata_mq.commands.rare import decode_trim
from strata_storage.leading.pin_sweep import PinSweep
from strata_storage.leading.trims import Trims
from tests.unit.storage.serving_leader import ServingLeader
from tests.unit.storage.waiting_leader import TOPIC_ID, turns

QUEUE = 2


async def test_a_trim_is_applied_before_the_next_is_decided_when_its_caller_has_left() -> None:
    """Apply compares nothing: the older decision would let the queue begin earlier again."""
    node = ServingLeader()
    node.submit([b"%d" % number for number in range(9)], queue=QUEUE)
    node.commit()
    trims = Trims(node.machine, node.proposer, 100, sweep=PinSweep())
    first = asyncio.ensure_future(trims.purge(TOPIC_ID, {QUEUE: 6}))
    await turns()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(trims.purge(TOPIC_ID, {QUEUE: 3}))
    await turns()
    assert [
        decode_trim(b"".join(payload)).queues[0].min_offset for payload, _ in node.replica.proposed
    ] == [6]
    node.commit()
    await turns()
    assert await second == 0
    row = node.machine.queues.get(TOPIC_ID, QUEUE)
    assert row is not None
    assert row.min_offset == 6
