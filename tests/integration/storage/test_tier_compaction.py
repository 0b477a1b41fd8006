"""Small objects are put together while their messages are read; what is left behind is deleted."""

from __future__ import annotations

import random
from pathlib import Path

from strata_testing.storage_node import GROUP, NodeUnderTest
from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    retain,
    tiered_node,
    upload,
)

ROUNDS = 9


def live_keys(node: NodeUnderTest) -> set[str]:
    """Return the objects that hold something that is needed."""
    metadata = node.app.node.engine(GROUP).machine.tier.metadata
    return {held.ref.key for held in metadata.objects() if held.live_ranges}


async def test_many_small_objects_become_few(tmp_path: Path) -> None:
    """Every message is where readers look for it, before, after, and when the old ones are gone."""
    rng, tier = random.Random(31), Tier()
    expected: dict[int, list[bytes]] = {1: [], 2: []}
    async with tiered_node(tmp_path, tier) as node:
        for _ in range(ROUNDS):
            for queue, messages in (await fill(node, rng, 3)).items():
                expected[queue] += messages
            await upload(node)
        small = live_keys(node)
        assert len(small) == ROUNDS
        await empty_log(node)
        compacted = live_keys(node)
        assert len(compacted) < ROUNDS
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
        node.clock.advance(tier.config.delete_grace_ms / 1_000 + 1)
        await node.append([b"later"], queue=3)
        await retain(node)
        left = {key for key in tier.keys if key.endswith(".set")}
        assert compacted <= left
        assert not (small - compacted) & left
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
