"""`tier.metadata = json`: what is in which object, in files that people can read."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from strata_testing.storage_node import GROUP
from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    tiered_node,
    upload,
)


@pytest.mark.parametrize("lost", ["nothing", "files", "rows"])
async def test_the_tier_is_read_after_a_restart(tmp_path: Path, lost: str) -> None:
    """Messages that only the tier has are read by the files, which come back from the rows."""
    rng, tier = random.Random(4), Tier(metadata="json")
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        clock = node.clock
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
    files = tmp_path / "tier"
    if lost != "nothing":
        shutil.rmtree(files if lost == "files" else tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
    (path,) = files.glob(f"{GROUP:08x}-*.json")
    manifest = json.loads(path.read_text())["manifest"]
    assert manifest["raft_group"] == GROUP


async def test_the_kind_of_metadata_can_be_changed(tmp_path: Path) -> None:
    """A node that kept rows only writes files when it is told to, and reads without them again."""
    rng = random.Random(5)
    buckets = Tier()
    async with tiered_node(tmp_path, buckets) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        clock = node.clock
    assert not (tmp_path / "tier").exists()
    for kind in ("json", "rocksdb", "json"):
        tier = Tier(metadata=kind)
        tier.buckets = buckets.buckets
        async with tiered_node(tmp_path, tier, clock=clock) as node:
            assert await fetch_all(node, 1) == list(enumerate(expected[1]))
            await node.append([kind.encode()], boot_id=ord(kind[0]) + len(expected[1]), queue=1)
            expected[1].append(kind.encode())
            await upload(node)
