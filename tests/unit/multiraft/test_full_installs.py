"""An install whose rows the disk refuses for a while: the node lives, and it ends well later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from strata_multiraft import LogFull
from strata_seglog.index import VOID_INDEX
from strata_sim.rows_machine import RowsMachine
from strata_testing import until
from tests.unit.multiraft.test_snapshots import Cluster, expected, refuse_entries


@pytest.fixture
async def cluster(make_node: Any, settled: Callable[[], Awaitable[None]]) -> AsyncIterator[Cluster]:
    cluster = Cluster(make_node, settled)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    yield cluster
    for node in cluster.nodes.values():
        await node.multiraft.stop()


class FullDisk:
    """Refuses a step of an install while it is full.

    Attributes:
        refused: how often it did.
    """

    def __init__(self, machine: RowsMachine, step: str, patch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.refused = 0
        method = getattr(machine, step)

        def refuse(*given: object) -> None:
            if self.is_full:
                self.refused += 1
                raise LogFull("rows: no space left on device")
            method(*given)

        patch.setattr(machine, step, refuse)


@pytest.mark.parametrize("step", ["begin_install", "install_rows", "finish_install", "installed"])
async def test_rows_that_the_disk_refuses_are_installed_when_it_has_room(
    cluster: Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node lives; a snapshot that is there whole is not fetched again."""
    await cluster.leave_behind()
    machine = cluster.machines[3]
    disk = FullDisk(machine, step, monkeypatch)

    async def installed() -> bool:
        await cluster.tick(1)
        return machine.payloads() == expected(20) and not cluster.replica(3).installing

    async def refused() -> bool:
        return await installed() or disk.refused > 2

    await until(refused)
    assert cluster.machines[3].applied_index() < 20 or cluster.replica(3).installing
    disk.is_full = False
    await until(installed)
    assert not cluster.nodes[3].fatal
    if step in ("finish_install", "installed"):
        assert machine.steps.count("begin") == 1
    await cluster.propose(1, 21, 22)
    await cluster.tick(1, times=2)
    assert machine.payloads() == expected(22)


@pytest.mark.parametrize("step", ["abandon_install", "installed"])
async def test_an_install_that_ended_is_voided_when_the_disk_has_room(
    cluster: Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the next start, which finds it: neither process ends."""
    await cluster.leave_behind()
    cluster.fault = refuse_entries
    disk = FullDisk(cluster.machines[3], step, monkeypatch)
    await cluster.tick(1, times=2)
    await until(lambda: disk.refused > 2)
    old = cluster.nodes[3]
    if step == "abandon_install":
        await cluster.reboot(3)
        disk = FullDisk(cluster.machines[3], step, monkeypatch)
        await until(lambda: disk.refused > 2)
    cluster.fault = lambda part: None
    disk.is_full = False

    async def installed() -> bool:
        await cluster.tick(1)
        return cluster.machines[3].payloads() == expected(20)

    await until(installed)
    assert (old.fatal, cluster.nodes[3].fatal) == ([], [])


async def test_the_log_is_not_truncated_before_the_rows_are_marked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between would leave rows that point at entries which are gone."""
    await cluster.leave_behind()
    disk = FullDisk(cluster.machines[3], "begin_install", monkeypatch)
    await cluster.tick(1, times=2)
    await until(lambda: disk.refused > 2)
    assert cluster.nodes[3].log.term(3, VOID_INDEX) is None
    cluster.machines[3].flush()
    before = cluster.machines[3].payloads()
    assert before
    cluster.cut = {3}
    await cluster.reboot(3)
    assert cluster.machines[3].payloads() == before
    assert not cluster.replica(3).read_only
