"""NATS JetStream: three servers, each stream on all of them, each write on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers import install
from bench.peers.peer import Peer, window
from bench.peers.processes import listens, run_tool
from bench.peers.works import BODY_BYTES, Kind, Phase, Work
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports

NODES = ("n0", "n1", "n2")
CLUSTER = "bench"
START_LIMIT_S = 30.0
CREATE_LIMIT_S = 60.0


class Nats(Peer):
    """Three replicas; a majority has synced a message before the answer."""

    name = "nats"
    title = "NATS JetStream 2.15.2 R3, sync_interval always"
    durability = "fsync of a majority before the answer"
    phase = Phase.REPLICATED
    kinds = frozenset({Kind.SEND})

    def __init__(self) -> None:
        super().__init__()
        self._server = self._publish = Path()
        self._servers = ""

    def install(self) -> None:
        """Build server and load generator; see the base class."""
        self._publish = install.go_program("publish", ".")
        self._server = install.go_program("nats-server", "github.com/nats-io/nats-server/v2")

    def launch(self, folder: Path) -> None:
        """Start the servers; see the base class."""
        clients = free_ports(2 * len(NODES))
        routes = clients + len(NODES)
        others = ", ".join(f'"nats://{HOST}:{routes + number}"' for number in range(len(NODES)))
        for number, node in enumerate(NODES):
            config = folder / f"{node}.conf"
            store = folder / "data" / node
            config.write_text(
                f'server_name: "{node}"\n'
                f'listen: "{HOST}:{clients + number}"\n'
                f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n'
                f'cluster {{ name: "{CLUSTER}", listen: "{HOST}:{routes + number}", '
                f"routes: [{others}] }}\n"
            )
            self.processes.start(node, [str(self._server), "-c", str(config)])
        ports = range(clients, clients + len(NODES))
        self.processes.wait("servers", lambda: all(map(listens, ports)), START_LIMIT_S)
        self._servers = ",".join(f"{HOST}:{port}" for port in ports)

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create a stream; see the base class."""
        run_tool([*self._program(topic), "-create"], CREATE_LIMIT_S)

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load; see the base class."""
        options = ["-in-flight", str(work.in_flight), "-batch", str(work.batch)]
        return [*self._program(topic), *options, *window(seconds)]

    def _program(self, topic: str) -> list[str]:
        options = ["-system", "nats", "-servers", self._servers, "-topic", topic]
        return [str(self._publish), *options, "-body", str(BODY_BYTES)]
