"""Reads for followers that find nothing: trimmed, replaced by another leader, or not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata_multiraft.replica.stored_log import WantedEntries
from strata_raft import Role
from tests.unit.multiraft.memory_cluster import Cluster, Settled, three_nodes


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> AsyncIterator[Cluster]:
    async for cluster in three_nodes(make_node, settled):
        yield cluster


def read_late(cluster: Cluster, first: int, last: int) -> Any:
    """Let node 1 read a range for a follower; return the gate that holds the read up."""
    node, replica = cluster.nodes[1], cluster.replica(1)
    gate = type(node.gate)()
    gate.close()
    catch_up = node.multiraft._catch_up
    catch_up._run_reads = gate
    replica.stored._wanted[first] = WantedEntries(first, last, 1 << 20)
    catch_up.wanted(replica)
    return gate


async def test_entries_that_another_leader_cut_were_not_trimmed(cluster: Cluster) -> None:
    """A replica deposed while it reads keeps the start of its log, though it finds nothing."""
    for number in range(20):
        await cluster.propose(1, b"%d" % number)
    await cluster.tick(1, times=2)
    replica, stored = cluster.replica(1), cluster.replica(1).stored
    cluster.cut = {1}
    lost = [replica.propose((b"lost %d" % number,)) for number in range(10)]
    await cluster.settled()
    assert (stored.first_index(), stored.last_index()) == (1, 31)
    gate = read_late(cluster, 29, 31)
    await cluster.settled()
    assert gate.waiting == 1
    await cluster.tick(3, times=6)
    await cluster.tick(2, times=7)
    leader = next(node_id for node_id in (2, 3) if cluster.replica(node_id).role is Role.LEADER)
    cluster.cut = set()
    await cluster.tick(leader, times=3)
    assert (replica.role, stored.last_index()) == (Role.FOLLOWER, 22)
    gate.open()
    await cluster.settled()
    await cluster.tick(leader)
    assert (stored.first_index(), stored.last_index()) == (1, 22)
    assert cluster.nodes[1].log.runs(1) == [(1, 22)]
    await asyncio.gather(*lost, return_exceptions=True)


@pytest.mark.parametrize("low", [9, 12])
async def test_trimmed_entries_end_where_the_log_says(cluster: Cluster, low: int) -> None:
    """A leader's log begins at its oldest entry, at its end if it has none: not where it read."""
    for number in range(10):
        await cluster.propose(1, b"%d" % number)
    await cluster.tick(1, times=2)
    stored = cluster.replica(1).stored
    assert (stored.first_index(), stored.last_index()) == (1, 11)
    gate = read_late(cluster, 3, 5)
    cluster.nodes[1].log.trim(1, low)
    gate.open()
    await cluster.settled()
    assert (stored.first_index(), stored.last_index()) == (low, 11)


async def test_entries_that_should_be_there_are_read_again_after_a_pause(cluster: Cluster) -> None:
    """A leader's log that begins before what is not found was not trimmed to behind it."""
    for number in range(10):
        await cluster.propose(1, b"%d" % number)
    await cluster.tick(1, times=2)
    stored = cluster.replica(1).stored
    retries: list[str] = []
    failures = cluster.nodes[1].multiraft._catch_up._failures
    failures.retry = lambda purpose, group, error, again: retries.append(f"{purpose}: {error}")
    read_late(cluster, 12, 14).open()
    await cluster.settled()
    assert retries == ["catch-up: entry 12 is not found in a log from 1"]
    assert (stored.first_index(), stored.last_index()) == (1, 11)
    assert cluster.replica(1).read_only == ""
