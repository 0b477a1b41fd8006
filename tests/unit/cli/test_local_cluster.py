"""The folder of `strata local up`: it holds a cluster to keep, or one that never came up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from strata_cli.local.cluster import LocalCluster
from strata_cli.local.plan import ClusterPlan, Member, load
from strata_cli.local.readiness import NotReadyError

PLAN = ClusterPlan((Member("storage-1", "storage", 1), Member("broker-1", "broker", 2)))


class Starts:
    """Stands for the starts of processes.

    Attributes:
        failure: of each start; None: they serve.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: BaseException | None = None

        def start(cluster: LocalCluster, members: Iterable[Member]) -> None:
            for member in (begun := list(members)):
                folder = cluster.folder / member.name
                folder.mkdir(exist_ok=True)
                (folder / "messages").write_text("kept")
            if begun and self.failure is not None:
                raise self.failure

        monkeypatch.setattr(LocalCluster, "_start", start)
        monkeypatch.setattr(LocalCluster, "_check_ports", lambda *_: None)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(monkeypatch)


def made(folder: Path) -> LocalCluster:
    return LocalCluster.make(folder, lambda: PLAN)


def held(folder: Path) -> list[str]:
    """Return the members that have data."""
    return sorted(each.parent.name for each in folder.glob("*/messages"))


def test_data_stays_although_the_first_up_was_killed(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes went on and took messages, and have ended since: nothing says they failed."""
    cluster = made(tmp_path)
    starts.failure = KeyboardInterrupt()
    # Nothing that an `up` does at its end happens after kill -9.
    monkeypatch.setattr(LocalCluster, "_stop", lambda *_: None)
    monkeypatch.setattr(LocalCluster, "_note", lambda *_, **__: None, raising=False)
    with pytest.raises(KeyboardInterrupt):
        cluster.up()
    assert held(tmp_path) == ["storage-1"]
    made(tmp_path)
    assert held(tmp_path) == ["storage-1"]


def test_a_cluster_whose_first_start_failed_is_made_anew(tmp_path: Path, starts: Starts) -> None:
    """Its plan may be the reason. A later failure of a cluster that has served deletes nothing."""
    starts.failure = NotReadyError("storage-1 ended", "")
    with pytest.raises(NotReadyError):
        made(tmp_path).up()
    made(tmp_path)
    assert held(tmp_path) == []
    starts.failure = None
    made(tmp_path).up()
    starts.failure = NotReadyError("storage-1 ended", "")
    with pytest.raises(NotReadyError):
        made(tmp_path).up()
    made(tmp_path)
    assert held(tmp_path) == ["broker-1", "storage-1"]


def test_what_was_started_by_hand_after_a_failed_start_stays(
    tmp_path: Path, starts: Starts
) -> None:
    """`strata local start` has made it serve."""
    starts.failure = NotReadyError("storage-1 ended", "")
    with pytest.raises(NotReadyError):
        made(tmp_path).up()
    assert load(tmp_path) is not None
    starts.failure = None
    LocalCluster.open(tmp_path).start(["storage-1", "broker-1"])
    made(tmp_path)
    assert held(tmp_path) == ["broker-1", "storage-1"]
