"""etcd: three nodes, of which the first is asked, whether it leads or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers import install
from bench.peers.peer import Peer
from bench.peers.processes import listens
from bench.peers.strata import table_gets
from bench.peers.works import ETCD, Kind, Phase, Work
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports

NODES = ("n0", "n1", "n2")
START_LIMIT_S = 30.0


class Etcd(Peer):
    """Three replicas with linearizable reads."""

    name = ETCD
    title = "etcd 3.6.8, three replicas"
    durability = "linearizable reads, fsync of a majority before a write's answer"
    phase = Phase.TABLES
    kinds = frozenset({Kind.GETS})

    def __init__(self) -> None:
        super().__init__()
        self._server = self._load_generator = Path()
        self._endpoint = ""

    def install(self) -> None:
        """Build etcd and the load generator; see the base class."""
        self._load_generator = install.load_generator()
        self._server = install.etcd()

    def launch(self, folder: Path) -> None:
        """Start the nodes; see the base class."""
        clients = free_ports(2 * len(NODES))
        peers = {node: f"{HOST}:{clients + 3 + number}" for number, node in enumerate(NODES)}
        cluster = ",".join(f"{node}=http://{place}" for node, place in peers.items())
        for number, node in enumerate(NODES):
            client = f"{HOST}:{clients + number}"
            options = {
                "name": node,
                "data-dir": folder / "data" / node,
                "listen-peer-urls": f"http://{peers[node]}",
                "initial-advertise-peer-urls": f"http://{peers[node]}",
                "listen-client-urls": f"http://{client}",
                "advertise-client-urls": f"http://{client}",
                "initial-cluster": cluster,
                "log-level": "error",
            }
            command = [str(self._server), *(f"--{key}={value}" for key, value in options.items())]
            self.processes.start(node, command)
        self._endpoint = f"{HOST}:{clients}"
        self.processes.wait("etcd", lambda: listens(clients), START_LIMIT_S)

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create nothing: etcd has one table."""

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load; see the base class."""
        program = [str(self._load_generator), "-endpoint", self._endpoint, "-topic", topic]
        return [*program, *table_gets("etcd", work, seconds)]
