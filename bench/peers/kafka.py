"""Kafka: three nodes, each of them broker and controller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers import install
from bench.peers.peer import Peer, window
from bench.peers.processes import listens, run_tool
from bench.peers.rocketmq import write_properties
from bench.peers.works import BODY_BYTES, LINGER_MS, QUEUES, Kind, Phase, Work
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports

NODES = 3
HEAP = "1g"
CLUSTER_ID = "bench-bench-bench-bench"
START_LIMIT_S = 60.0
CREATE_LIMIT_S = 60.0
FORMAT_LIMIT_S = 60.0


class Kafka(Peer):
    """Three replicas; two have a message in memory before the answer."""

    name = "kafka"
    title = "Kafka 4.3.1 RF3"
    durability = "page cache of all in-sync replicas, at least two"
    phase = Phase.REPLICATED
    kinds = frozenset({Kind.SEND})
    warm_up_s = 30.0

    def __init__(self) -> None:
        super().__init__()
        self._jars = self._publish = Path()
        self._servers = ""

    def install(self) -> None:
        """Fetch Kafka's jars and build the load generator; see the base class."""
        self._publish = install.go_program("publish", ".")
        self._jars = install.jars("kafka")

    def launch(self, folder: Path) -> None:
        """Format and start the nodes; see the base class."""
        brokers = free_ports(2 * NODES)
        controllers = brokers + NODES
        voters = ",".join(f"{node + 1}@{HOST}:{controllers + node}" for node in range(NODES))
        for node in range(NODES):
            config = write_properties(
                folder / f"node-{node}.properties",
                {
                    "process.roles": "broker,controller",
                    "node.id": node + 1,
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://{HOST}:{brokers + node},"
                    f"CONTROLLER://{HOST}:{controllers + node}",
                    "advertised.listeners": f"PLAINTEXT://{HOST}:{brokers + node}",
                    "controller.listener.names": "CONTROLLER",
                    "log.dirs": folder / "data" / str(node),
                    "offsets.topic.replication.factor": NODES,
                    "auto.create.topics.enable": "false",
                },
            )
            tool = ["format", "--cluster-id", CLUSTER_ID, "--config", str(config)]
            run_tool(self._java("kafka.tools.StorageTool", tool, "256m"), FORMAT_LIMIT_S)
            self.processes.start(f"node-{node}", self._java("kafka.Kafka", [str(config)], HEAP))
        ports = range(brokers, brokers + NODES)
        self.processes.wait("brokers", lambda: all(map(listens, ports)), START_LIMIT_S)
        self._servers = ",".join(f"{HOST}:{port}" for port in ports)

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create a topic; see the base class."""
        run_tool([*self._program(topic), "-create", "-queues", str(QUEUES)], CREATE_LIMIT_S)

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load; see the base class."""
        linger = f"{LINGER_MS}ms" if work.batch > 1 else "0"
        options = ["-in-flight", str(work.in_flight), "-batch", str(work.batch)]
        return [*self._program(topic), *options, "-linger", linger, *window(seconds)]

    def _program(self, topic: str) -> list[str]:
        options = ["-system", "kafka", "-servers", self._servers, "-topic", topic]
        return [str(self._publish), *options, "-body", str(BODY_BYTES)]

    def _java(self, main: str, arguments: Sequence[str], heap: str) -> list[str]:
        heaps = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-Djava.net.preferIPv4Stack=true"]
        return ["java", *heaps, "-cp", f"{self._jars}/*", main, *arguments]
