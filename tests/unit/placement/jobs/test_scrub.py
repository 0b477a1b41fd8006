"""Damage that each task of a scrub finds in its objects."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata_placement.jobs.scrub_rows import scrubbed, work_of
from strata_tier.objects.names import ManifestName
from strata_tier.ranges.manifest import manifest_of
from strata_tier.store.opening import open_store
from tests.unit.tier.objects import (
    HOME,
    RAFT_GROUP,
    Tier,
    messages_of,
    put_manifest,
    queue_of,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bucket of three objects, ten messages each."""
    path = tmp_path / "tier"

    async def fill() -> None:
        tier = Tier(await open_store(f"posix://{path}"))
        for first in (0, 10, 20):
            await tier.add([queue_of(messages_of(1, 0, range(first, first + 10)))])
        name = ManifestName(RAFT_GROUP, 2, 1)
        await put_manifest(tier.store, manifest_of(tier.metadata, HOME, name, 90, 9_000))
        await tier.store.close()

    asyncio.run(fill())
    return path


def test_what_is_damaged_is_named(folder: Path) -> None:
    """Every object of the manifest is read; a changed byte and a lost object are findings."""
    url = f"posix://{folder}"
    work, damaged = work_of(url, "")
    assert (len(work), damaged) == (3, [])
    whole = scrubbed(url, work, None)
    assert [(each.messages, each.finding) for each in whole] == [(10, "")] * 3
    assert all(each.bytes_read >= 400 for each in whole)
    first, second = (folder / each.ref.key for each in work[:2])
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    second.unlink()
    found = scrubbed(url, work, 100.0)
    assert [bool(each.finding) for each in found] == [True, True, False]
    assert all(each.key in each.finding for each in found[:2])
