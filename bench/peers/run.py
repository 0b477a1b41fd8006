"""Compare StrataMQ with other systems in one run: `python -m bench.peers.run --help`.

All servers and the client share this machine. Systems without replicas run at the same time and
take turns, work by work and round by round, so that a slow minute of the machine meets them all; a
JVM is paused while others are measured. Replicated systems would hold elections after a pause: each
of them runs alone, once in a round. The run leaves out a system whose tools are missing, and says
so; it goes on when a system fails. Systems are installed in build/peers and keep their data there;
the results are JSON in bench/results. Some servers listen on every address: `make bench-peers`
installs all parts first and then measures in a network namespace that has a loopback only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.peers import table
from bench.peers.dledger import DLedger
from bench.peers.errors import MissingError, PeerError
from bench.peers.etcd import Etcd
from bench.peers.install import ROOT, TARGET
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.peer import Peer
from bench.peers.processes import cpu_seconds, resident_bytes
from bench.peers.rocketmq import RocketMq, RocketMqSynchronous
from bench.peers.strata import StrataReplicas, StrataStandalone, StrataTables
from bench.peers.works import WORKS, Phase, Work
from bench.run import machine

PEERS: tuple[type[Peer], ...] = (
    RocketMq,
    RocketMqSynchronous,
    StrataStandalone,
    DLedger,
    Nats,
    Kafka,
    StrataReplicas,
    Etcd,
    StrataTables,
)
SETTLE_S = 3.0
IDLE_S = 3.0
FAILURES_MAX = 3
"""A system that fails so often in a row is left out of the rest."""
FAILURES = (PeerError, OSError, ValueError, KeyError, subprocess.SubprocessError)
"""A system may raise these, and the run goes on."""
ERROR_CHARACTERS = 500
"""The results keep the end of an error's text."""
QUIET = 0.1
"""Share of the machine that other programs may use before a run warns."""

Item = TypeVar("Item")


class Run:
    """One run: what was chosen, and what came out so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folder = TARGET / "run"
        self._began_s = time.monotonic()
        self._topics = 0
        self._systems: dict[str, dict[str, Any]] = {}
        self._loads: list[dict[str, Any]] = []
        self._failures: dict[str, int] = {}
        self._machine = {
            **machine(),
            "busy_before": round(busy_share(SETTLE_S), 3),
            "memory_gib": round(
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
            ),
        }

    def all_phases(self) -> None:
        """Measure every phase, and write the results after each."""
        if self._machine["busy_before"] > QUIET:
            print(f"other programs use {self._machine['busy_before']:.0%} of this machine")
        shutil.rmtree(self._folder, ignore_errors=True)
        for phase in Phase:
            works = [work for work in WORKS if work.phase is phase and self._wanted(work)]
            chosen = [each for each in PEERS if each.phase is phase and self._chosen(each)]
            if works and chosen:
                try:
                    self._phase(phase, works, chosen)
                finally:
                    self._write()

    def install(self) -> None:
        """Install the chosen systems; one that cannot be installed is named later, by the run."""
        for peer in filter(self._chosen, PEERS):
            try:
                peer().install()
            except FAILURES as error:
                print(f"{peer.name:<16} not installed: {error}", flush=True)

    def document(self) -> dict[str, Any]:
        """Return the results so far."""
        return {
            "machine": self._machine,
            "seconds": self._options.seconds,
            "rounds": self._options.rounds,
            "took_s": round(time.monotonic() - self._began_s),
            "systems": self._systems,
            "loads": self._loads,
        }

    def _wanted(self, work: Work) -> bool:
        return not self._options.work or work.name in self._options.work

    def _chosen(self, peer: type[Peer]) -> bool:
        return not self._options.only or peer.name in self._options.only

    def _phase(self, phase: Phase, works: Sequence[Work], chosen: Sequence[type[Peer]]) -> None:
        if phase.together:
            self._session(works, chosen, range(self._options.rounds))
            return
        for number in range((self._options.rounds + 1) // 2):
            for peer in turned(chosen, number):
                if not {"skipped", "failed"} & self._systems.get(peer.name, {}).keys():
                    self._session(works, [peer], [number])

    def _session(
        self, works: Sequence[Work], chosen: Sequence[type[Peer]], rounds: Sequence[int]
    ) -> None:
        """Start systems, measure some rounds, and stop them."""
        if self._is_late():
            return
        started: list[Peer] = []
        try:
            for each in chosen:
                peer = each()
                if self._start(peer, started):
                    self._warm_up(peer, works)
            time.sleep(SETTLE_S)
            for peer in started:
                self._idle(peer)
            for number in rounds:
                if started and not self._is_late():
                    self._round(number, works, turned(started, number))
        finally:
            for peer in started:
                self._stop(peer)

    def _is_late(self) -> bool:
        late: bool = time.monotonic() - self._began_s > self._options.limit_minutes * 60
        if late:
            print("no time for further rounds: see --limit-minutes", flush=True)
        return late

    def _round(self, number: int, works: Sequence[Work], started: Sequence[Peer]) -> None:
        for work in works:
            for peer in started:
                if work.kind in peer.kinds and self._failures.get(peer.name, 0) < FAILURES_MAX:
                    for other in started:
                        if other is not peer:
                            other.pause()
                    peer.resume()
                    self._load(peer, work, number)

    def _load(self, peer: Peer, work: Work, number: int) -> None:
        load: dict[str, Any] = {"system": peer.name, "work": work.name, "round": number}
        # Pages that another system left to the page cache are not written in this one's window.
        os.sync()
        try:
            load |= peer.load(work, self._new_topic(), self._options.seconds)
        except FAILURES as error:
            self._failures[peer.name] = self._failures.get(peer.name, 0) + 1
            load["failed"] = told(error)
        else:
            self._failures[peer.name] = 0
        self._loads.append(load)
        print(f"{number + 1} {peer.name:<14} {work.text:<44} {table.line(load)}", flush=True)

    def _start(self, peer: Peer, started: list[Peer]) -> bool:
        entry: dict[str, Any] = {"title": peer.title, "phase": peer.phase.value}
        entry["durability"] = peer.durability
        self._systems[peer.name] = entry
        folder = self._folder / peer.name
        try:
            peer.install()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            began_s = time.monotonic()
            # It may have started some of its servers when it fails.
            started.append(peer)
            peer.start(folder)
        except MissingError as error:
            entry["skipped"] = str(error)
            print(f"{peer.name:<16} left out: {error}", flush=True)
            return False
        except FAILURES as error:
            entry["failed"] = told(error)
            print(f"{peer.name:<16} FAILED to start: {error}", flush=True)
            if peer in started:
                started.remove(peer)
                self._stop(peer)
            return False
        entry["start_s"] = round(time.monotonic() - began_s, 1)
        print(f"{peer.name:<16} serves after {entry['start_s']} s", flush=True)
        return True

    def _warm_up(self, peer: Peer, works: Sequence[Work]) -> None:
        own = [work for work in works if work.kind in peer.kinds]
        seconds = peer.warm_up_s * self._options.warm_up / max(len(own), 1)
        for work in own if seconds else ():
            try:
                peer.load(work, self._new_topic(), max(seconds, 1.0))
            except FAILURES as error:
                print(f"{peer.name:<16} warming up, {work.text}: {error}", flush=True)

    def _idle(self, peer: Peer) -> None:
        before_s = sum(map(cpu_seconds, peer.pids))
        time.sleep(IDLE_S)
        used_s = sum(map(cpu_seconds, peer.pids)) - before_s
        self._systems[peer.name] |= {
            "idle_cores": round(used_s / IDLE_S, 3),
            "idle_resident_mb": round(sum(map(resident_bytes, peer.pids)) / 1e6, 1),
        }

    def _stop(self, peer: Peer) -> None:
        try:
            peer.stop()
        except FAILURES as error:
            print(f"{peer.name:<16} does not stop: {error}", flush=True)
        self._systems[peer.name]["title"] = peer.title
        # Logs stay, for who wants to know why something failed.
        shutil.rmtree(self._folder / peer.name / "data", ignore_errors=True)

    def _new_topic(self) -> str:
        self._topics += 1
        return f"peers-{self._topics}"

    def _write(self) -> None:
        self._options.results.write_text(text_of(self.document()))


def told(error: Exception) -> str:
    """Return what an error says for the results, without the folders of this machine."""
    text = str(error).replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
    return text[-ERROR_CHARACTERS:]


def turned(items: Sequence[Item], number: int) -> list[Item]:
    """Return items with another one first in each round: none always follows the same one."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def text_of(document: dict[str, Any]) -> str:
    """Return results as JSON with a line for each system and load."""
    listed = {"systems": dict, "loads": list}
    parts = [
        f'  "{key}": {json.dumps(value)}' for key, value in document.items() if key not in listed
    ]
    systems = [f'    "{name}": {json.dumps(value)}' for name, value in document["systems"].items()]
    loads = [f"    {json.dumps(load)}" for load in document["loads"]]
    parts.append('  "systems": {\n' + ",\n".join(systems) + "\n  }")
    parts.append('  "loads": [\n' + ",\n".join(loads) + "\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def busy_share(seconds: float) -> float:
    """Return the share of the machine's CPU time that is used while this process sleeps."""

    def ticks() -> tuple[int, int]:
        numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(numbers[:8]), numbers[3] + numbers[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [each.name for each in PEERS]
    works = [work.name for work in WORKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PEER", help=", ".join(names))
    parser.add_argument("--work", nargs="+", choices=works, metavar="WORK", help=", ".join(works))
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of a load")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="times that each load is measured; half as often, rounded up, with three replicas",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=1.0,
        help="factor on the time that systems warm up; 0: none",
    )
    parser.add_argument(
        "--limit-minutes", type=float, default=25.0, help="no round begins after this time"
    )
    parser.add_argument(
        "--results", type=Path, default=table.RESULTS, help="the JSON file that is written"
    )
    parser.add_argument(
        "--install-only", action="store_true", help="install the systems and measure nothing"
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, write the JSON and print the tables."""
    options = parse()
    # An ending process must not leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run = Run(options)
    if options.install_only:
        run.install()
        return
    run.all_phases()
    print(table.tables(run.document()))
    results = options.results.resolve()
    shown = results.relative_to(ROOT) if results.is_relative_to(ROOT) else results
    print(f"written to {shown}; python -m bench.peers.table writes docs/performance.md")


if __name__ == "__main__":
    main()
