"""A whole cluster in one thread under virtual time: nameservers, storage nodes, brokers, clients.

    cluster = SimCluster(seed, ClusterOptions())
    cluster.run(scenario(cluster))      # until the scenario's end; then look at cluster.trace

The same seed and scenario give the same run, to the last message. Real services run unchanged on
simulated machines (`hosts.py`); only adapters below their ports are simulated.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from strata_sim.chance import source
from strata_sim.client import SimClient
from strata_sim.hosts import AnyHost, BrokerHost, NameserverHost, StorageHost, World
from strata_sim.network import SimNetwork
from strata_sim.options import BROKER_PORT, NAMESERVER_PORT, STORAGE_PORT, ClusterOptions
from strata_sim.trace import Trace
from strata_sim.virtual_loop import VirtualLoop, run


class SimCluster:
    """See the module docstring.

    Args:
        seed: of everything that is left to chance.
        options: size and configuration.
        show: called with every event, for a replay.

    Attributes:
        seed: the seed.
        loop: virtual time.
        network: between all machines.
        trace: what happened.
        chance: for the scenario.
        tally: how much work all processes did.
        buckets: of the object store.
        operations: how many calls of operators were answered, by name.
        grown_topics: topics that operators asked to give more queues.
        nameservers, storage, brokers: the hosts; of storage nodes the spare ones come last.
    """

    def __init__(
        self,
        seed: int,
        options: ClusterOptions | None = None,
        *,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.options = options or ClusterOptions()
        self.loop = VirtualLoop(source(seed, "loop"))
        self.trace = Trace(self.loop.time, show)
        self.chance = source(seed, "scenario")
        self.network = SimNetwork(
            self.loop, source(seed, "network"), self.options.network, trace=self.trace
        )
        names = [f"n{number + 1}" for number in range(self.options.nameservers)]
        storage_count = self.options.storage_nodes + self.options.spare_storage_nodes
        storage_names = [f"s{number + 1}" for number in range(storage_count)]
        world = World(
            seed,
            self.network,
            self.trace,
            self.options,
            contextvars.copy_context(),
            [f"{name}:{NAMESERVER_PORT}" for name in names],
            [f"{name}:{STORAGE_PORT}" for name in storage_names[: self.options.storage_nodes]],
        )
        self.tally = world.tally
        self.buckets = world.buckets
        self.nameservers = [NameserverHost(world, name) for name in names]
        self.storage = [StorageHost(world, name) for name in storage_names]
        self.brokers = [
            BrokerHost(world, f"b{number + 1}") for number in range(self.options.brokers)
        ]
        self.grown_topics: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self._clients = 0

    @property
    def hosts(self) -> list[AnyHost]:
        """All hosts."""
        return [*self.nameservers, *self.storage, *self.brokers]

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.loop.time()

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario to its end; whatever still runs then is dropped."""

        async def whole() -> None:
            try:
                await scenario
            finally:
                self.trace.ended = True

        run(self.loop, whole())

    async def start(self, timeout_s: float = 30.0) -> None:
        """Start everything but the spare nodes and wait until it serves.

        Raises:
            TimeoutError: it does not.
        """
        first = [*self.nameservers, *self.storage[: self.options.storage_nodes]]
        for host in first:
            host.start()
        await self.until(lambda: all(host.serving for host in first), timeout_s)
        for broker in self.brokers:
            broker.start()
        await self.until(lambda: all(broker.serving for broker in self.brokers), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: it does not within the time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.05)

    def client(self, name: str = "") -> SimClient:
        """Return a new client that knows all brokers."""
        self._clients += 1
        name = name or f"c{self._clients}"
        return SimClient(
            self.network,
            name,
            [f"{broker.name}:{BROKER_PORT}" for broker in self.brokers],
            chance=source(self.seed, name),
        )

    def client_names(self) -> list[str]:
        """Return the machines of clients made without a name."""
        return [f"c{number + 1}" for number in range(self._clients)]

    def host(self, name: str) -> AnyHost:
        """Return a host by its name.

        Raises:
            KeyError: there is none.
        """
        return {host.name: host for host in self.hosts}[name]
