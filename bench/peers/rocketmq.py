"""RocketMQ on one machine: name server, and broker and proxy in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers import install, remoting
from bench.peers.errors import PeerError
from bench.peers.processes import listens
from bench.peers.v2 import GROUP, V2Peer
from bench.peers.works import ROCKETMQ, Phase
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports

CLUSTER = "bench"
START_LIMIT_S = 90.0
CREATE_LIMIT_S = 40.0
# The project's start scripts add these options for JDK 17, with this collector.
JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxDirectMemorySize=4g",
    "-Djava.net.preferIPv4Stack=true",
    *(
        f"--add-{what}=java.base/{package}=ALL-UNNAMED"
        for what in ("opens", "exports")
        for package in ("java.nio", "jdk.internal.misc", "jdk.internal.ref", "sun.nio.ch")
    ),
)
NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
PROXY = "org.apache.rocketmq.proxy.ProxyStartup"


def java(folder: Path, jars: Path, heap: str, main: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a RocketMQ process whose logs stay in a folder."""
    home = f"-Duser.home={folder}"
    heaps = [f"-Xms{heap}", f"-Xmx{heap}"]
    return ["java", *heaps, *JVM_OPTIONS, home, "-cp", f"{jars}/*", main, *arguments]


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    """Write a file of properties; return it."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


class RocketMqPeer(V2Peer):
    """The name server, the proxy and the administration, which all forms of RocketMQ share."""

    warm_up_s = 45.0

    def __init__(self) -> None:
        super().__init__()
        self._jars = Path()
        self._name_server = ""

    def install(self) -> None:
        """Fetch RocketMQ's jars; see the base class."""
        super().install()
        self._jars = install.jars("rocketmq")

    def create(self, topic: str, queues: int) -> None:
        """Create a topic at every master, and wait for its route; see the base class."""

        def create() -> bool:
            masters = self.masters()
            for master in masters:
                remoting.create_topic(master, topic, queues)
                remoting.create_group(master, GROUP)
            return bool(masters)

        self.processes.wait(f"topic {topic}", create, CREATE_LIMIT_S)
        # The proxy keeps a missing route for half a minute, so no client may ask too early.
        self.processes.wait(
            f"route of {topic}",
            lambda: remoting.has_route(self._name_server, topic),
            CREATE_LIMIT_S,
        )

    def masters(self) -> list[str]:
        """Return the addresses of the brokers that take topics.

        Raises:
            OSError: no connection.
            PeerError: the name server refused.
        """
        return remoting.masters(self._name_server)

    def launch_name_server(self, folder: Path) -> None:
        """Start the name server and wait until it answers."""
        port = free_ports(1)
        self._name_server = f"{HOST}:{port}"
        config = write_properties(
            folder / "namesrv.conf",
            {
                "listenPort": port,
                "bindAddress": HOST,
                "rocketmqHome": folder,
                "kvConfigPath": folder / "data" / "kvConfig.json",
            },
        )
        self._start(folder, "namesrv", "256m", NAMESRV, ["-c", str(config)])
        self.processes.wait("name server", lambda: listens(port), START_LIMIT_S)

    def launch_proxy(self, folder: Path, heap: str, broker: Path | None = None) -> None:
        """Start the proxy, with a broker in the same process if there is a file for it."""
        port = free_ports(2)
        config = folder / "proxy.json"
        config.write_text(
            json.dumps(
                {
                    "rocketMQClusterName": CLUSTER,
                    "namesrvAddr": self._name_server,
                    "localServeAddr": HOST,
                    "grpcServerPort": port,
                    "remotingListenPort": port + 1,
                }
            )
        )
        arguments = ["-n", self._name_server, "-pc", str(config)]
        arguments += ["-pm", "LOCAL", "-bc", str(broker)] if broker else ["-pm", "CLUSTER"]
        self._start(folder, "proxy", heap, PROXY, arguments)
        self.processes.wait("proxy", lambda: listens(port), START_LIMIT_S)
        # The proxy's gRPC server has no option for its address: it listens at all of the machine.
        self.endpoint = f"{HOST}:{port}"

    def broker_config(self, folder: Path, name: str, values: Mapping[str, object]) -> Path:
        """Write the configuration of a broker whose ports are free; return the file."""
        # The fast port is two below the broker's, and the one for replicas one above.
        port = free_ports(4) + 2
        store = folder / "data" / name
        shared = {
            "brokerClusterName": CLUSTER,
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "namesrvAddr": self._name_server,
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "autoCreateTopicEnable": "false",
            "autoCreateSubscriptionGroup": "false",
        }
        return write_properties(folder / f"{name}.conf", {**shared, **values})

    def _start(
        self, folder: Path, name: str, heap: str, main: str, arguments: Sequence[str]
    ) -> None:
        home = folder / name
        home.mkdir()
        command = java(home, self._jars, heap, main, arguments)
        self.processes.start(name, command, {"ROCKETMQ_HOME": str(home)})


class RocketMq(RocketMqPeer):
    """One broker, its flush asynchronous."""

    name = ROCKETMQ
    title = "RocketMQ 5.5.0, asynchronous flush"
    durability = "page cache"
    phase = Phase.SINGLE
    # Between two of its loads pass less than the two minutes after which connections are closed.
    is_busy_when_idle = True
    flush = "ASYNC_FLUSH"

    def launch(self, folder: Path) -> None:
        """Start both processes; see the base class."""
        (folder / "data").mkdir()
        self.launch_name_server(folder)
        broker = self.broker_config(
            folder, "broker", {"brokerName": "broker", "brokerId": 0, "flushDiskType": self.flush}
        )
        self.launch_proxy(folder, "2g", broker)
        self.processes.wait("broker", self._has_master, START_LIMIT_S)

    def _has_master(self) -> bool:
        if not self.masters():
            raise PeerError("no master is known yet")
        return True


class RocketMqSynchronous(RocketMq):
    """One broker that flushes before it answers."""

    name = "rocketmq-sync"
    title = "RocketMQ 5.5.0, synchronous flush"
    durability = "fsync before the answer"
    flush = "SYNC_FLUSH"
