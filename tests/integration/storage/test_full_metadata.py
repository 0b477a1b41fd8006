"""A node without room for its copy of the metadata goes on; one whose sync failed ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from strata_state.metadata import MetadataStoreError, MetadataSyncFailed
from strata_storage.process.member import StorageMember, _Running
from strata_storage.process.member_setup import MemberOptions
from strata_testing import until
from tests.integration.storage.storage_cluster import ClusterUnderTest, MemberUnderTest


async def only_member(
    cluster: ClusterUnderTest,
) -> tuple[str, MemberUnderTest, StorageMember, _Running]:
    """Start a node; return its name, its process as a test has it, the member and its parts."""
    (name,) = await cluster.add(1)
    under_test = cluster.members[name]
    member = under_test.member
    assert member is not None
    assert member._running is not None
    return name, under_test, member, member._running


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_a_replica_is_hosted_when_the_copy_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Neither the change that wants it nor syncs behind it end the process on a full disk."""
    async with ClusterUnderTest(tmp_path) as cluster:
        name, under_test, member, running = await only_member(cluster)
        cache, store = running.cache, running.store
        refused: list[str] = []

        def refuse(*_: object) -> NoReturn:
            refused.append(step)
            raise MetadataStoreError("No space left on device")

        monkeypatch.setattr(member, "_options", MemberOptions(metadata_sync_ms=1))
        with monkeypatch.context() as full, structlog.testing.capture_logs() as lines:
            full.setattr(store, step, refuse)
            syncing = asyncio.ensure_future(member._sync_loop(cache))
            cluster.stub.make_group(1, [name], [(0, 4096)])
            await until(lambda: len(refused) > 3)
            assert not syncing.done()
            assert not under_test.fatal
            assert not member.app.node.hosted()
        told = [each for each in lines if each["event"] == "metadata not synced"]
        assert len(told) == (step == "sync")
        assert await cluster.until_led(1) == name
        assert not syncing.done()
        syncing.cancel()


async def test_a_failed_sync_of_the_copy_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have lost what it was asked to keep, and a second one would not say so (rule 7)."""
    async with ClusterUnderTest(tmp_path) as cluster:
        name, under_test, member, running = await only_member(cluster)
        store, refused = running.store, []

        def refuse() -> NoReturn:
            refused.append(name)
            raise MetadataSyncFailed("Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(store, "sync", refuse)
            cluster.stub.make_group(1, [name], [(0, 4096)])
            await until(lambda: bool(under_test.fatal))
            assert not member.app.node.hosted()
        assert {type(failure) for _, failure in under_test.fatal} == {MetadataSyncFailed}
        assert len(refused) == len(under_test.fatal)
        under_test.fatal.clear()
