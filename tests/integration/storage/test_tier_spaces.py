"""Namespaces with a place of their own in the tier."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strata_mq.tier_policy import TierPolicy
from strata_tier.objects.spaces import Stores
from strata_tier.store.drivers.memory import MemoryBucket, MemoryObjectStore
from strata_tier.upkeep.audit import AuditOptions, verify
from tests.integration.storage.tiered_node import (
    POLICY,
    Tier,
    empty_log,
    fetch_all,
    fill,
    tiered_node,
    upload,
)

OWN_URL = "memory://acme"


class OfNamespace:
    """All topics are of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._policy = POLICY._replace(namespace=namespace)

    def tier_policy(self, _: int) -> TierPolicy:
        return self._policy


async def _filled(folder: Path, tier: Tier) -> None:
    """Upload messages, empty the log and read them back, also after a restart."""
    rng = random.Random(3)
    async with tiered_node(folder, tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        clock = node.clock
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
        (cost,) = node.app.node.tiering.status(node.app.node.engines()[0]).topics
        assert cost.uploaded_bytes > sum(map(len, expected[1])) + sum(map(len, expected[2]))
        assert cost.downloaded_bytes > sum(map(len, expected[1]))
        assert (cost.put_requests >= 1, cost.get_requests >= 1) == (True, True)
    async with tiered_node(folder, tier, clock=clock) as node:
        assert await fetch_all(node, 1) == list(enumerate(expected[1]))


@pytest.mark.parametrize(
    ("namespace", "prefix"), [("acme", "spaces/acme/"), ("a%b", "spaces/a=25b/")]
)
async def test_a_namespace_has_a_prefix(tmp_path: Path, namespace: str, prefix: str) -> None:
    """Objects of a namespace are under its prefix and are read, verified and found there."""
    tier = Tier(OfNamespace(namespace))
    await _filled(tmp_path, tier)
    objects = [key for key in tier.keys if key.endswith(".set")]
    assert objects
    assert all(key.startswith(f"{prefix}test/") for key in objects)
    report = await verify(Stores(MemoryObjectStore(tier.bucket)), "test", AuditOptions())
    assert (report.is_whole, report.unnamed_objects) == (True, 0), report.findings


async def test_prefixes_can_be_turned_off(tmp_path: Path) -> None:
    """Without prefixes the objects of all namespaces are in the folder of the cluster."""
    tier = Tier(OfNamespace("acme"), namespace_prefixes=False)
    await _filled(tmp_path, tier)
    assert all(key.startswith("test/") for key in tier.keys)


async def test_a_namespace_has_a_store_of_its_own(tmp_path: Path) -> None:
    """Objects of a namespace with a URL are in that store, and nothing else is."""
    tier = Tier(OfNamespace("acme"), spaces={"acme": {"url": OWN_URL}})
    await _filled(tmp_path, tier)
    own = MemoryObjectStore(tier.buckets[OWN_URL])
    assert {key.split("/")[1] for key in tier.buckets[OWN_URL].objects} == {"sets"}
    assert not [key for key in tier.keys if key.endswith(".set")]
    stores = Stores(MemoryObjectStore(tier.bucket), {"acme": own})
    report = await verify(stores, "test", AuditOptions())
    assert (report.is_whole, report.objects > 0) == (True, True), report.findings
    without = await verify(Stores(MemoryObjectStore(MemoryBucket())), "test", AuditOptions())
    assert without.manifests == 0


async def test_leftovers_are_removed_when_a_node_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every store is asked to remove what began a day ago."""
    asked: list[tuple[str, int]] = []

    async def removed(self: MemoryObjectStore, before_ms: int) -> int:
        asked.append((self.name, before_ms))
        return 1

    monkeypatch.setattr(MemoryObjectStore, "remove_leftovers", removed)
    tier = Tier(spaces={"acme": {"url": OWN_URL}})
    async with tiered_node(tmp_path, tier) as node:
        await node.append([b"one"])
        now_ms = node.clock.wall_ms()
    assert {name for name, _ in asked} == {"memory://tier", OWN_URL}
    assert all(now_ms - 86_400_000 - 60_000 < before <= now_ms - 86_400_000 for _, before in asked)
