"""Clients of key-value tables, one on disk and one in memory; each key has one writer.

A writer puts rising numbers, so what a reader may see is plain: the last one that was answered
when it asked, or any that was begun since, or one whose answer was lost and which may happen at any
time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from strata.kv.v1 import kv_pb2
from strata_sim.chance import source
from strata_sim.client import LOST, Refused, SimClient
from strata_sim.cluster import SimCluster

_FAILURES = (Refused, *LOST)
_CREATE_S = 20.0
_RETRY_S = 0.2
_THINK_S = 1.0
_KEYS = 2
_TABLES = {"sim-disk": kv_pb2.ENGINE_ROCKSDB, "sim-memory": kv_pb2.ENGINE_MEMORY}


@dataclass(slots=True)
class Register:
    """Contents that one key may have.

    Attributes:
        name: table and key.
        begun: the last number whose write was begun.
        answered: the last one whose write was answered.
        unanswered: numbers whose write may still happen.
    """

    name: str
    begun: int = 0
    answered: int = 0
    unanswered: set[int] = field(default_factory=set)

    def wrong(self, value: int, answered_before: int) -> str:
        """Return what is wrong with a value that was read; empty: nothing.

        Args:
            value: what was read; 0: nothing was there.
            answered_before: `answered` when the read was begun.
        """
        if value > self.begun:
            return f"table phantom: {self.name} holds {value}, which nobody wrote"
        if value < answered_before and value not in self.unanswered:
            return f"table lost: {self.name} holds {value}, {answered_before} was answered before"
        return ""


class TableWork:
    """See the module docstring.

    Args:
        cluster: where they work.

    Attributes:
        done: how much was done of what.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._places = [
            (table, b"key-%d" % number, Register(f"{table} {number}"))
            for table in _TABLES
            for number in range(_KEYS)
        ]
        self._writing = True
        self._tasks: list[asyncio.Task[None]] = []
        self._violations: list[str] = []
        self.done: Counter[str] = Counter()

    async def create(self) -> None:
        """Create the tables.

        Raises:
            TimeoutError: the cluster does not serve.
        """
        client = self._cluster.client()
        async with asyncio.timeout(_CREATE_S):
            for name, engine in _TABLES.items():
                table = kv_pb2.TableName(name=name)
                request = kv_pb2.CreateTableRequest(table=table, engine=engine)
                while True:
                    try:
                        await client.table("CreateTable", request)
                        break
                    except _FAILURES as failure:
                        if "ALREADY_EXISTS" in str(failure):
                            break
                        await asyncio.sleep(_RETRY_S)

    def start(self) -> None:
        """Let all begin."""
        for place in self._places:
            client = self._cluster.client()
            chance = source(self._cluster.seed, f"table {client.name}")
            self._spawn(self._write(client, chance, *place))

    async def drain(self, timeout_s: float) -> list[str]:
        """Stop writing and read every key; return what cannot be read, and what is wrong."""
        self._writing = False
        await asyncio.gather(*self._tasks)
        client = self._cluster.client()
        for table, key, register in self._places:
            deadline_s = self._cluster.now_s + timeout_s
            while not await self._read(client, table, key, register):
                if self._cluster.now_s > deadline_s:
                    self._violations.append(f"stuck: {register.name} cannot be read")
                    break
                await asyncio.sleep(_RETRY_S)
        return self._violations

    async def stop(self) -> None:
        """End all clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(
        self, client: SimClient, chance: random.Random, table: str, key: bytes, register: Register
    ) -> None:
        while self._writing:
            await asyncio.sleep(chance.uniform(0, _THINK_S))
            register.begun += 1
            value = register.begun
            register.unanswered.add(value)
            request = kv_pb2.PutRequest(
                table=kv_pb2.TableName(name=table), key=key, value=b"%d" % value
            )
            try:
                await client.table("Put", request)
            except _FAILURES as failure:
                self._cluster.trace.note(f"{client.name} put {register.name}: {failure!r}")
            else:
                register.answered = value
                register.unanswered.discard(value)
                self.done["table_writes"] += 1
            await self._read(client, table, key, register)

    async def _read(self, client: SimClient, table: str, key: bytes, register: Register) -> bool:
        """Read one key and judge it; return whether there was an answer."""
        request = kv_pb2.GetRequest(table=kv_pb2.TableName(name=table), key=key)
        answered = register.answered
        try:
            response = kv_pb2.GetResponse.FromString(await client.table("Get", request))
        except _FAILURES as failure:
            self._cluster.trace.note(f"{client.name} get {register.name}: {failure!r}")
            return False
        self.done["table_reads"] += 1
        value = int(response.item.value) if response.HasField("item") else 0
        wrong = register.wrong(value, answered)
        if wrong:
            self._violations.append(wrong)
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
