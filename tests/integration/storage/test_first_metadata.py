"""A node that has to take in all metadata before it knows its replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata_metadata import NodePresence
from strata_storage.process.member_setup import MemberOptions
from tests.integration.storage.storage_cluster import ClusterUnderTest

WAIT_MS = 300


class Told(asyncio.Event):
    """Stands for the end of a snapshot that names the replicas of this node."""

    async def named(self, _: NodePresence) -> set[int]:
        await self.wait()
        return set()


@pytest.mark.parametrize("comes", [True, False])
async def test_a_node_waits_as_long_as_metadata_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    """A million topics take longer than a nameserver may be silent, which is told."""
    told = Told()
    async with ClusterUnderTest(tmp_path) as cluster:
        (name,) = await cluster.add(1)
        member = cluster.members[name].member
        assert member is not None
        monkeypatch.setattr(member, "_named_replicas", told.named)
        monkeypatch.setattr(member, "_options", MemberOptions(register_wait_ms=WAIT_MS))
        ready = asyncio.ensure_future(member.until_ready())
        if not comes:
            with pytest.raises(TimeoutError, match=r"for 0\.3 s no nameserver has told"):
                await ready
            return
        assert member._running is not None
        for _ in range(4):
            await asyncio.sleep(WAIT_MS / 1_000 / 2)
            member._running.cache.changes_taken += 1
        assert not ready.done()
        told.set()
        await ready
