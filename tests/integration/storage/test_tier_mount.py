"""A node whose tier is a mount that is missing when it starts."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from strata_runtime.metrics import Metrics
from strata_storage.tiering.known_stores import FILE
from strata_testing import until
from strata_testing.storage_node import GROUP, TOPIC
from strata_tier.store.drivers.posix import MARK
from strata_tier.store.ports import StoreMissingError
from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    is_uploaded,
    retain,
    tiered_node,
    upload,
)


@pytest.mark.parametrize("case", ["restarted", "upgraded", "upgraded over an older mark"])
async def test_no_message_is_put_below_a_missing_mount(tmp_path: Path, case: str) -> None:
    """Uploads wait and the log keeps all until the mount is back; then every acked message is read.

    An upgraded node knows no mark: only its rows say that objects must be there.
    """
    mount, away = tmp_path / "mnt", tmp_path / "export"
    mount.mkdir()
    tier, rng = Tier(url=f"posix://{mount}/tier"), random.Random(1)
    async with tiered_node(tmp_path / "data", tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        clock = node.clock
    if case != "restarted":
        (known,) = (tmp_path / "data").rglob(FILE)
        known.unlink()
        (mount / "tier" / MARK).write_bytes(b"")
    mount.rename(away)
    mount.mkdir()
    if case == "upgraded over an older mark":
        for folder in (mount / "tier", mount / "tier" / ".uploads"):
            folder.mkdir()
        (mount / "tier" / MARK).touch()
    async with tiered_node(tmp_path / "data", tier, clock=clock) as node:
        uploaded = {queue: len(messages) for queue, messages in expected.items()}
        for queue, messages in (await fill(node, rng, 26, boot_id=2)).items():
            expected[queue] += messages
        with pytest.raises(StoreMissingError, match="not mounted"):
            await upload(node)
        node.clock.advance(3_700)
        for _ in range(4):
            await node.append([rng.randbytes(400_000)], queue=3, boot_id=2)
            await retain(node)
        state = node.app.node.engine(GROUP).machine.tier
        for queue, count in uploaded.items():
            assert state.local_offset(TOPIC.topic_id, queue) <= count
        assert not list(mount.rglob("*.set"))
        # The mount is back: the same process sees it.
        shutil.move(mount, tmp_path / "below")
        away.rename(mount)
        await upload(node)
        assert is_uploaded(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
    assert (mount / "tier" / MARK).read_text().strip()


async def test_a_missing_mount_is_counted(tmp_path: Path) -> None:
    """The first look at the store after a start says that it is missing."""
    mount = tmp_path / "mnt"
    mount.mkdir()
    tier = Tier(url=f"posix://{mount}/tier")
    async with tiered_node(tmp_path / "data", tier) as node:
        await node.append([b"first"], queue=1)
        await upload(node)
    mount.rename(tmp_path / "export")
    metrics = Metrics()
    failed = re.compile(r'strata_storage_tier_failures_total\{.*work="leftovers".*\} 1')
    async with tiered_node(tmp_path / "data", tier, metrics=metrics):
        await until(lambda: failed.search(metrics.render().decode()) is not None)
    assert 'outcome="store_missing"' in metrics.render().decode()
    assert not mount.exists()
