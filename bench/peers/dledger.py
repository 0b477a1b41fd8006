"""RocketMQ's DLedger: three brokers that elect a leader, and a proxy of its own."""

from __future__ import annotations

from pathlib import Path

from bench.peers.rocketmq import BROKER, START_LIMIT_S, RocketMqPeer
from bench.peers.works import Kind, Phase
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports

GROUP = "broker"
NODES = ("n0", "n1", "n2")


class DLedger(RocketMqPeer):
    """Three replicas; a majority has a message in memory before the answer."""

    name = "dledger"
    title = "RocketMQ 5.5.0 DLedger, three replicas"
    durability = "page cache of a majority"
    phase = Phase.REPLICATED
    kinds = frozenset({Kind.SEND, Kind.WAITS})

    def launch(self, folder: Path) -> None:
        """Start name server, brokers and proxy; see the base class."""
        (folder / "data").mkdir()
        self.launch_name_server(folder)
        first = free_ports(len(NODES))
        peers = ";".join(f"{node}-{HOST}:{first + number}" for number, node in enumerate(NODES))
        for node in NODES:
            config = self.broker_config(
                folder,
                node,
                {
                    "brokerName": GROUP,
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": GROUP,
                    "dLegerPeers": peers,
                    "dLegerSelfId": node,
                    "flushDiskType": "ASYNC_FLUSH",
                },
            )
            self._start(folder, f"broker-{node}", "1g", BROKER, ["-c", str(config)])
        # A proxy that starts before a broker is known ends.
        self.processes.wait("a leader", lambda: bool(self.masters()), START_LIMIT_S)
        self.launch_proxy(folder, "1g")
