"""Installs that are given up: the replica has voided its log and gets everything again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from strata_multiraft.base.ports import Envelope
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart
from strata_sim.rows_machine import RowsMachine
from tests.unit.multiraft.test_snapshots import (
    Cluster,
    Settled,
    expected,
    refuse_entries,
)


class GrownCluster(Cluster):
    """A raft group that replica 1 began alone."""

    def boot(self, node_id: int, machine: RowsMachine, *_: Any, **fields: Any) -> Any:
        voters = frozenset({1}) if node_id == 1 else frozenset[int]()
        return super().boot(node_id, machine, voters, **fields)


def let_pass(_: SnapshotPart) -> None:
    pass


async def confirmed_and_lost(cluster: Cluster, *, crashes: bool) -> None:
    """Let replica 3 confirm what replica 2 sends, then lose it to an install from replica 1."""
    hold, fetch = asyncio.Event(), cluster.snapshots.fetch

    async def slow(node_id: str, request: SnapshotFetch) -> AsyncIterator[SnapshotPart]:
        await hold.wait()
        async for part in fetch(node_id, request):
            yield part

    cluster.snapshots.fetch = slow  # type: ignore[method-assign, assignment]
    await cluster.tick(1, times=7)
    await cluster.propose(1, 1, 5)
    await cluster.tick(1)
    cluster.cut = {3}
    await cluster.propose(1, 6, 20)
    # Replica 1 has freed its log and offers a snapshot, replica 2 has all entries.
    cluster.machines[1].low = 15
    await cluster.trim(1, 15)
    cluster.cut = set()
    await cluster.tick(1, times=3)
    await cluster.replica(1).transfer_leadership(2)
    await cluster.settled()
    await cluster.tick(2, times=5)
    assert cluster.replica(3).last_index == cluster.replica(2).last_index
    cluster.cut = {3}
    await cluster.propose(2, 21, 24)
    await cluster.tick(2, times=2)
    cluster.fault = refuse_entries
    hold.set()
    await cluster.settled()
    cluster.fault = let_pass
    if crashes:
        await cluster.reboot(3)
        await cluster.settled()
    assert cluster.replica(3).last_index == 0
    cluster.cut = set()


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_follower_that_lost_what_it_confirmed_gets_it_again(
    make_node: Any, settled: Settled, crashes: bool
) -> None:
    """The leader believes its refusal; the raft group works with it when the third one dies."""
    cluster = Cluster(make_node, settled)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    await confirmed_and_lost(cluster, crashes=crashes)
    await cluster.tick(2, times=3)
    assert cluster.machines[3].payloads() == expected(24)
    received: Counter[str] = Counter()
    receive = cluster.nodes[3].multiraft.receive

    def counted(envelopes: Sequence[Envelope]) -> None:
        received.update(type(each.message).__name__ for each in envelopes)
        receive(envelopes)

    cluster.network.connect("3", counted)
    await cluster.settled()
    assert not received, "nothing is sent without a reason"
    cluster.cut = {1}
    await cluster.propose(2, 25, 26)
    await cluster.tick(2, times=2)
    assert cluster.machines[3].payloads() == expected(26)
    for node in cluster.nodes.values():
        await node.multiraft.stop()


async def test_a_replica_that_began_alone_waits_for_the_others_after_a_lost_install(
    make_node: Any, settled: Settled
) -> None:
    """It must not campaign, now or at its next start, and its node lives."""
    cluster = GrownCluster(make_node, settled)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    await settled()
    await cluster.propose(1, 1, 3)
    growing = asyncio.ensure_future(cluster.replica(1).change_membership(frozenset({1, 2, 3})))
    await cluster.tick(1, times=6)
    await growing
    await cluster.tick(1, times=3)
    await cluster.replica(1).transfer_leadership(2)
    await settled()
    await cluster.tick(2, times=3)
    cluster.cut = {1}
    await cluster.propose(2, 4, 20)
    for node_id in (2, 3):
        cluster.machines[node_id].low = 15
        await cluster.trim(node_id, 15)
    cluster.cut = set()
    cluster.fault = refuse_entries
    await cluster.tick(2, times=4)
    await settled()
    assert cluster.nodes[1].fatal == []
    cluster.fault = let_pass
    await cluster.reboot(1)
    await cluster.tick(2, times=6)
    assert cluster.nodes[1].fatal == []
    assert cluster.machines[1].payloads() == expected(20)
    for node in cluster.nodes.values():
        await node.multiraft.stop()
