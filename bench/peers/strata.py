"""StrataMQ: a standalone node, three replicas, and three replicas with tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError

from bench.peers.errors import PeerError
from bench.peers.peer import window
from bench.peers.v2 import GROUP, V2Peer
from bench.peers.works import Kind, Phase, Work
from strata_testing import NeverHeld
from tests.e2e.cluster import Cluster, ClusterError
from tests.e2e.process import process_tree
from tests.e2e.standalone import Standalone, StandaloneError

SETTLE_LIMIT_S = 60.0


@contextmanager
def translated() -> Iterator[None]:
    """Raise what can be wrong with our own processes as a PeerError."""
    try:
        yield
    except (StandaloneError, ClusterError, NeverHeld, SubprocessError) as error:
        raise PeerError(str(error)) from None


class StrataStandalone(V2Peer):
    """One node, all tiers in one process."""

    name = "strata"
    title = "StrataMQ, standalone"
    durability = "fsync before the answer"
    phase = Phase.SINGLE

    def __init__(self) -> None:
        super().__init__()
        self._node: Standalone | None = None

    @property
    def pids(self) -> list[int]:
        """The node, and the process in front of it if the edge has one."""
        return process_tree(self._running().pid)

    def launch(self, folder: Path) -> None:
        """Start the node; see the base class."""
        self._node = Standalone(folder / "data")
        with translated():
            self._node.start()
            self._node.create_group(GROUP)
        self.endpoint = self._node.endpoint

    def check(self) -> None:
        """Check that the node runs; see the base class."""
        if not self._running().alive:
            raise PeerError("the node has ended")

    def create(self, topic: str, queues: int) -> None:
        """Create a topic; see the base class."""
        with translated():
            self._running().create_topic(topic, "--queues", str(queues))

    def stop(self) -> None:
        """Stop the node."""
        if self._node is not None:
            self._node.close()
            # The node's output is complete only now.
            self.title = f"{type(self).title}{edge_of(self._node.log_path)}"

    def _running(self) -> Standalone:
        assert self._node is not None, "not started"
        return self._node


class StrataReplicas(V2Peer):
    """Three nameservers, three storage nodes and one broker, which clients call directly."""

    name = "strata-3"
    title = "StrataMQ, three replicas"
    durability = "fsync of a majority before the answer"
    phase = Phase.REPLICATED

    def __init__(self) -> None:
        super().__init__()
        self._cluster: Cluster | None = None
        self._pids: list[int] = []

    @property
    def pids(self) -> list[int]:
        """All processes but the forwarder, through which no call of a load goes."""
        return self._pids

    def launch(self, folder: Path) -> None:
        """Start the cluster; see the base class."""
        self._cluster = Cluster(folder / "data", nameservers=3, storage=3, brokers=1)
        with translated():
            self._cluster.up()
            self._cluster.settle(SETTLE_LIMIT_S)
            self._cluster.create_group(GROUP)
            processes = self._cluster.local("status")
            self.endpoint = self._cluster.address("broker-1")
        served = [each["pid"] for each in processes if each["role"] != "forwarder"]
        self._pids = [pid for each in served for pid in process_tree(each)]

    def check(self) -> None:
        """Check that all processes run; see the base class."""
        gone = [pid for pid in self._pids if not Path(f"/proc/{pid}").exists()]
        if gone:
            raise PeerError(f"processes {gone} have ended")

    def create(self, topic: str, queues: int) -> None:
        """Create a topic; see the base class."""
        assert self._cluster is not None, "not started"
        with translated():
            self._cluster.create_topic(topic, "--queues", str(queues))

    def stop(self) -> None:
        """Stop all processes."""
        if self._cluster is not None:
            with translated():
                self._cluster.down()


class StrataTables(StrataReplicas):
    """The same with the plugin for tables."""

    name = "strata-tables"
    title = "StrataMQ, three replicas"
    durability = "linearizable reads, fsync of a majority before a write's answer"
    phase = Phase.TABLES
    kinds = frozenset({Kind.GETS})

    def launch(self, folder: Path) -> None:
        """Start the cluster with the plugin; see the base class."""
        before = os.environ.get("STRATA_PLUGINS")
        os.environ["STRATA_PLUGINS"] = "kv"
        try:
            super().launch(folder)
        finally:
            if before is None:
                del os.environ["STRATA_PLUGINS"]
            else:
                os.environ["STRATA_PLUGINS"] = before

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create nothing: a table is made by its first write."""

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load; see the base class."""
        return [*self._program(topic), *table_gets("strata", work, seconds)]


def table_gets(dialect: str, work: Work, seconds: float) -> list[str]:
    """Return options of the load generator for reads of a table."""
    options = ["-mode", "table-get", "-dialect", dialect, "-in-flight", str(work.in_flight)]
    return [*options, *window(seconds)]


def edge_of(log: Path) -> str:
    """Return which edge a node says it has, for a title; empty when it says nothing."""
    found = re.search(r"^ready.*\bedge=(\w+)", log.read_text(), re.MULTILINE)
    return f" ({found[1]} edge)" if found else ""
