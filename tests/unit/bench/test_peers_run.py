"""The run that compares systems goes on whatever one of them does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.peers import run as driver
from bench.peers.errors import MissingError, PeerError
from bench.peers.install import ROOT
from bench.peers.peer import Peer, compact
from bench.peers.processes import Samples
from bench.peers.strata import StrataStandalone, StrataTables
from bench.peers.v2 import filled
from bench.peers.works import WORKS, Kind, Phase, Work

REPORT = {
    "messages": 500,
    "messages_per_s": 100.04,
    "p50_ms": 1.5,
    "p99_ms": 9.5,
    "max_ms": 20.0,
    "elapsed_s": 5.0,
    "errors": 0,
    "client_cpu_s": 0.5,
}


class FakePeer(Peer):
    """A system without processes."""

    name = "good"
    title = "Good"
    durability = "none"
    phase = Phase.SINGLE
    kinds = frozenset({Kind.SEND})
    stopped = 0

    @property
    def pids(self) -> list[int]:
        """None."""
        return []

    def install(self) -> None:
        """Need nothing."""

    def launch(self, folder: Path) -> None:
        """Start nothing."""
        assert folder.is_dir()

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create nothing."""

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return nothing to run."""
        return []

    def load(self, work: Work, topic: str, seconds: float) -> dict[str, Any]:
        """Report the same always."""
        return compact(REPORT, 2.0, 30.0)

    def stop(self) -> None:
        """Count."""
        type(self).stopped += 1


class MissingPeer(FakePeer):
    """A system whose tools are not there."""

    name = "missing"

    def install(self) -> None:
        """Need what is missing."""
        raise MissingError("go is not there: install Go")


class BrokenPeer(FakePeer):
    """A system that does not start."""

    name = "broken"
    stopped = 0

    def launch(self, folder: Path) -> None:
        """End at once."""
        raise PeerError("ended with 1")


class FailingPeer(FakePeer):
    """A system that starts and fails at all work, and at its own end."""

    name = "failing"

    def load(self, work: Work, topic: str, seconds: float) -> dict[str, Any]:
        """Fail."""
        raise PeerError(f"no answer, see {ROOT}/build/peers/run/a.log")

    def stop(self) -> None:
        """Fail."""
        raise OSError("gone")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of results of a run over these systems, after the run."""
    FakePeer.stopped = BrokenPeer.stopped = 0
    monkeypatch.setattr(driver, "PEERS", (MissingPeer, BrokenPeer, FailingPeer, FakePeer))
    rounds_of_a_run(tmp_path, monkeypatch, "2")
    return tmp_path / "results.json"


def test_systems_that_fail_do_not_end_a_run(results: Path) -> None:
    """Each has its reason in the results, the rest is measured, and what was started is stopped."""
    document = json.loads(results.read_text())
    systems = document["systems"]
    assert systems["missing"]["skipped"] == "go is not there: install Go"
    assert systems["broken"]["failed"] == "ended with 1"
    sends = [w.name for w in WORKS if w.phase is Phase.SINGLE and w.kind is Kind.SEND]
    good = [load for load in document["loads"] if load["system"] == "good"]
    assert [load["work"] for load in good] == sends * 2
    assert good[0]["messages_per_s"] == 100.0
    assert good[0]["messages_per_server_cpu_s"] == 250.0
    said = "no answer, see build/peers/run/a.log"
    failing = [load for load in document["loads"] if load["system"] == "failing"]
    assert [load["failed"] for load in failing] == [said] * driver.FAILURES_MAX
    assert (FakePeer.stopped, BrokenPeer.stopped) == (1, 1)


def test_another_system_begins_each_round(results: Path) -> None:
    """A system that always follows the same one would meet what that one leaves behind."""
    loads = json.loads(results.read_text())["loads"]
    begun = [
        next(load["system"] for load in loads if load["round"] == number) for number in range(2)
    ]
    assert begun == ["failing", "good"]


class AlonePeer(FakePeer):
    """A system that runs alone."""

    name = "alone"
    phase = Phase.REPLICATED
    running: ClassVar[list[str]] = []
    sessions: ClassVar[list[list[str]]] = []

    def launch(self, folder: Path) -> None:
        """Count who runs."""
        assert list(folder.iterdir()) == []
        (folder / "old.log").touch()
        self.running.append(self.name)
        self.sessions.append(list(self.running))

    def stop(self) -> None:
        """Count who runs."""
        self.running.remove(self.name)


class OtherAlonePeer(AlonePeer):
    """Another one."""

    name = "other"


def test_replicated_systems_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle system changes no figure, whatever it does; each start has no old files."""
    AlonePeer.sessions.clear()
    monkeypatch.setattr(driver, "PEERS", (AlonePeer, OtherAlonePeer))
    assert rounds_of_a_run(tmp_path, monkeypatch, "3") == [0, 0, 0, 0, 1, 1, 1, 1]
    assert AlonePeer.sessions == [["alone"], ["other"], ["other"], ["alone"]]


class BusyPeer(FakePeer):
    """A system that is paused while others are measured; it keeps who runs during its loads."""

    name = "busy"
    paused: ClassVar[set[str]] = set()
    paused_meanwhile: ClassVar[list[tuple[str, list[str]]]] = []

    def pause(self) -> None:
        """Count who is paused."""
        self.paused.add(self.name)

    def resume(self) -> None:
        """Count who is paused."""
        self.paused.discard(self.name)

    def load(self, work: Work, topic: str, seconds: float) -> dict[str, Any]:
        """Keep who is paused."""
        self.paused_meanwhile.append((self.name, sorted(self.paused)))
        return super().load(work, topic, seconds)


class OtherBusyPeer(BusyPeer):
    """Another one."""

    name = "other"


def test_busy_systems_are_paused_while_another_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle JVM would take from what the other system has."""
    BusyPeer.paused_meanwhile.clear()
    monkeypatch.setattr(driver, "PEERS", (BusyPeer, OtherBusyPeer))
    rounds_of_a_run(tmp_path, monkeypatch, "1", "--warm-up", "0", "--work", "send-1", "send-64")
    assert BusyPeer.paused_meanwhile == [("busy", ["other"]), ("other", ["busy"])] * 2


def test_no_round_begins_after_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a slow machine ends all the same."""
    monkeypatch.setattr(driver, "PEERS", (FakePeer, AlonePeer))
    assert rounds_of_a_run(tmp_path, monkeypatch, "3", "--limit-minutes", "0") == []


def rounds_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[int]:
    """Run; return the round of each load."""
    monkeypatch.setattr(driver, "TARGET", folder)
    monkeypatch.setattr(driver, "SETTLE_S", 0.0)
    monkeypatch.setattr(driver, "IDLE_S", 0.001)
    path = folder / "results.json"
    driver.Run(driver.parse(["--results", str(path), "--rounds", *options])).all_phases()
    return [load["round"] for load in json.loads(path.read_text())["loads"]]


def test_errors_of_a_load_are_kept_and_cpu_that_was_not_used_divides_nothing() -> None:
    """The first error's text says what happened; a rate per CPU second stays finite."""
    kept = compact({**REPORT, "errors": 3, "first_error": "busy"}, 0.0, 1.0)
    assert (kept["errors"], kept["first_error"]) == (3, "busy")
    assert kept["messages_per_server_cpu_s"] == 50_000


def test_cpu_of_a_window_between_samples() -> None:
    """A window that begins or ends between two samples takes its share of them."""
    samples = Samples([])
    for at_s, cpu_s in ((10.0, 1.0), (11.0, 2.0), (12.0, 4.0)):
        samples.add(at_s, cpu_s)
    assert samples.cpu_between(10.5, 11.5) == pytest.approx(1.5)
    assert samples.cpu_between(0.0, 20.0) == pytest.approx(3.0)


def test_each_work_has_its_options() -> None:
    """A drain ends before the last messages, which come out of few queues."""
    peer = StrataStandalone()
    commands = {
        work.kind: " ".join(peer.command(work, "t", 5.0))
        for work in WORKS
        if work.phase is Phase.SINGLE
    }
    assert filled(5.0) == 100_000
    assert "-mode send -in-flight 16 -batch 32" in commands[Kind.SEND]
    assert (
        "-warmup 3 -seconds 15.0 -mode drain -in-flight 8 -messages 90000" in commands[Kind.DRAIN]
    )
    assert "-mode end-to-end -receivers 16 -rate 1000" in commands[Kind.END_TO_END]
    assert "-mode waits -in-flight 12 -rate 50" in commands[Kind.WAITS]
    gets = next(work for work in WORKS if work.kind is Kind.GETS)
    command = " ".join(StrataTables().command(gets, "t", 5.0))
    assert "-mode table-get -dialect strata -in-flight 64 -warmup 3 -seconds 5.0" in command
