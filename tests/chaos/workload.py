"""Everything that clients do, at once, through all faults; and what must hold of it afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from strata_testing import NeverHeld
from tests.chaos.cluster import ChaosCluster
from tests.chaos.dead_letters import MAX_ATTEMPTS, DeadLetters
from tests.chaos.delays import Delays
from tests.chaos.fifo import FifoConsumers
from tests.chaos.lite import LiteTopics
from tests.chaos.remoting import QUEUES as REMOTING_QUEUES
from tests.chaos.remoting import RemotingClients
from tests.chaos.tables import Tables
from tests.e2e.client import Client
from tests.e2e.cluster import ClusterError
from tests.e2e.history import check, skipped
from tests.e2e.load import FAILURES, Load
from tests.e2e.transactions import Fate, Transactions

PAUSE_S = 0.2
# Shorter than many faults: sends are repeated, as impatient clients do.
TIMEOUT_S = 3.0
FINISH_LIMIT_S = 120.0
GROW_S = 45.0
RESET_S = 40.0
TRANSACTION_PAUSE_S = 0.5
RESETTING = "resetting"


class Workload:
    """Senders and consumers of every kind of message, and of tables.

    Args:
        cluster: running.
        chance: what clients choose.
    """

    def __init__(self, cluster: ChaosCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        endpoint = cluster.endpoint
        self.load = Load(endpoint, "normal", "fifo", "consumers", PAUSE_S, TIMEOUT_S)
        self._fifo = FifoConsumers(endpoint, "fifo", self.load.fifo_group, self.load.history)
        self._delays = Delays(endpoint, "delayed", "delayed-consumers", chance)
        self._letters = DeadLetters(endpoint, "letters", "givers-up")
        self._transactions = Transactions(endpoint, "transactions", "transaction-consumers")
        self._tables = Tables(endpoint, chance)
        self._lite = LiteTopics(endpoint, "sessions", "agents", chance)
        self._remoting = RemotingClients(cluster.remoting_ports(), "old", "poppers", chance)
        self._stop = asyncio.Event()
        self._transacted = asyncio.Event()
        self._queues = {"normal": 12, "fifo": 6}

    def create(self) -> None:
        """Create topics, consumer groups and tables."""
        cluster = self._cluster
        self.load.create_topics(cluster)
        cluster.create_topic("delayed", "--type", "DELAY", "--queues", "6")
        cluster.create_topic("letters", "--queues", "6")
        cluster.create_topic("transactions", "--type", "TRANSACTION", "--queues", "6")
        cluster.create_topic("sessions", "--type", "LITE", "--queues", "4")
        cluster.create_group("givers-up", "--max-attempts", str(MAX_ATTEMPTS))
        cluster.create_group("agents", "--max-attempts", "100")
        cluster.create_topic("old", "--queues", str(REMOTING_QUEUES))
        cluster.create_group("poppers", "--max-attempts", "100")
        cluster.create_group(RESETTING)
        self._tables.create(cluster)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[str]]:
        """Do all of it inside the block; then finish, and give what must not be.

        The list that the block is given is filled when it has ended, with the cluster whole.
        """
        wrong: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._delays.run(self._stop),
                self._letters.run(self._stop),
                self._fifo.run(self._stop),
                self._transact(),
                self._tables.run(self._stop),
                self._lite.run(self._stop),
                self._remoting.run(self._stop),
                self._grow(),
                self._reset(),
            ):
                tasks.create_task(work)
            async with self.load.running():
                yield wrong
            self._stop.set()
            wrong += await self._finish()

    def counts(self) -> dict[str, int]:
        """Return how much was done of what."""
        return {
            "sends": self.load.count(),
            "repeats": sum(
                answer.tries - 1 for answers in self.load.answers.values() for answer in answers
            ),
            "acknowledged": len(self.load.history.acknowledged),
            "delayed": len(self._delays.all),
            "recalled": sum(one.recalled is True for one in self._delays.all.values()),
            "transactions": len(self._transactions.all),
            "dead_letters": len(self._letters.poisoned),
            "table_operations": self._tables.count(),
            "lite_messages": len(self._lite.all),
            "remoting_messages": len(self._remoting.all),
        }

    async def _finish(self) -> list[str]:
        """Wait until what is under way has ended; return what must not be."""
        wrong: list[str] = []
        with suppress(NeverHeld):
            await self._delays.finish(FINISH_LIMIT_S)
        wrong += self._delays.violations()
        for some in (self._lite, self._remoting):
            with suppress(NeverHeld):
                await some.finish(FINISH_LIMIT_S)
            wrong += some.violations()
        wrong += await self._letters.finish(self._cluster, FINISH_LIMIT_S)
        with suppress(TimeoutError):
            await self.load.drain()
        wrong += check(self.load.history)
        wrong += self._fifo.violations
        wrong += skipped(self.load.history, self.load.group, "normal")
        wrong += await self._tables.violations()
        await self._transacted.wait()
        wrong += self._transactions.violations()
        return wrong

    async def _transact(self) -> None:
        transactions, chance = self._transactions, self._chance
        async with transactions.running() as client:
            while not self._stop.is_set():
                fate = chance.choice(list(Fate))
                one = await transactions.begin(client, fate)
                if not fate.when_asked:
                    await transactions.end(client, one)
                await asyncio.sleep(TRANSACTION_PAUSE_S * chance.uniform(0.5, 1.5))
            with suppress(NeverHeld):
                await transactions.settle(FINISH_LIMIT_S)
        self._transacted.set()

    async def _grow(self) -> None:
        """Give topics more queues now and then."""
        while not await self._stopped(GROW_S):
            topic = self._chance.choice(sorted(self._queues))
            queues = self._queues[topic] + 1
            self.load.history.grown[topic] += 1
            with suppress(ClusterError):
                await asyncio.to_thread(
                    self._cluster.strata, "topic", "update", topic, "--queues", str(queues)
                )
                self._queues[topic] = queues

    async def _reset(self) -> None:
        """Reset a consumer group now and then, and read a little of what it is given again."""
        async with Client(self._cluster.endpoint) as client:
            while not await self._stopped(RESET_S):
                with suppress(ClusterError, *FAILURES):
                    await asyncio.to_thread(
                        self._cluster.strata, "group", "reset", RESETTING, "--to", "earliest"
                    )
                    for queue in await client.queues("normal"):
                        await client.receive(queue, RESETTING, poll_s=1)

    async def _stopped(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), within_s * self._chance.uniform(0.5, 1.5))
        except TimeoutError:
            return False
        return True
