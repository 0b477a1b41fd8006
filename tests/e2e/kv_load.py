"""Concurrent clients of key-value tables, what they saw, and the checks of what was promised.

Three kinds of them. *Writers* put numbers that only rise, *swappers* raise counters by
compare-and-set: what was acknowledged must be there, and a version is won once. *Historians* do
everything to a few keys and note calls and answers by one clock, for the linearizability checker.
*Witnesses* watch: every change is told once, in order. A call without an answer ends nobody: its
outcome is noted as unknown.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from strata_kv.aio import AsyncKvClient, AsyncTable
from strata_kv.errors import KvError, KvUnknownOutcomeError
from strata_kv.model import ChangeKind, Changes, Consistency
from strata_runtime.tasks import Tasks
from strata_sim.linearizability import ITEM, UNKNOWN, Operation, check

CALL_S = 4.0
PAUSE_S = 0.02
WRITERS = 12
SWAPPERS = 6
COUNTERS = 3
HISTORIANS = 6
KEYS = 3
LOST = float("inf")

Work = Callable[[AsyncKvClient], Awaitable[None]]


@dataclass
class Promises:
    """Answers that writers and swappers got.

    Attributes:
        attempted: key -> the last number that a put tried.
        acknowledged: key -> the last number whose put was answered.
        won: (table, key, version) -> who was told that its compare-and-set made this version.
        twice: versions that two were told to have made.
        pause_s: between two operations of one client.
    """

    attempted: dict[tuple[str, bytes], int] = field(default_factory=dict)
    acknowledged: dict[tuple[str, bytes], int] = field(default_factory=dict)
    won: dict[tuple[str, bytes, int], str] = field(default_factory=dict)
    twice: list[tuple[str, bytes, int]] = field(default_factory=list)
    pause_s: float = 0.0

    async def write(self, table_name: str, key: bytes, client: AsyncKvClient) -> None:
        """Put numbers that rise, forever."""
        table = client.table(table_name)
        name = (table_name, key)
        while True:
            await asyncio.sleep(self.pause_s)
            number = self.attempted.get(name, 0) + 1
            self.attempted[name] = number
            try:
                await table.put(key, b"%d" % number)
            except KvUnknownOutcomeError:
                await asyncio.sleep(PAUSE_S)
            else:
                self.acknowledged[name] = number

    async def swap(self, table_name: str, key: bytes, who: str, client: AsyncKvClient) -> None:
        """Raise a counter by compare-and-set, forever."""
        table = client.table(table_name)
        while True:
            await asyncio.sleep(self.pause_s)
            try:
                item = await table.get(key)
                value, version = (b"0", 0) if item is None else (item.value, item.version)
                raised = b"%d" % (int(value) + 1)
                swapped = await table.compare_and_set(key, raised, version=version)
            except KvError:
                await asyncio.sleep(PAUSE_S)
                continue
            if swapped.done:
                won = (table_name, key, swapped.version)
                if won in self.won:
                    self.twice.append(won)
                self.won[won] = who

    def work(self, table_name: str) -> list[Work]:
        """Return the load of one table."""

        def writer(key: bytes) -> Work:
            return lambda client: self.write(table_name, key, client)

        def swapper(number: int) -> Work:
            key = b"counter-%d" % (number % COUNTERS)
            return lambda client: self.swap(table_name, key, f"swapper {number}", client)

        return [
            *(writer(b"writer-%d" % number) for number in range(WRITERS)),
            *(swapper(number) for number in range(SWAPPERS)),
        ]

    async def broken(self, client: AsyncKvClient) -> list[str]:
        """Return which promises do not hold, reading what is there now."""
        violations = [f"version {won} was won twice" for won in self.twice]
        for (table_name, key), attempted in self.attempted.items():
            item = await client.table(table_name).get(key)
            number = 0 if item is None else int(item.value)
            acknowledged = self.acknowledged.get((table_name, key), 0)
            if not acknowledged <= number <= attempted:
                violations.append(
                    f"{table_name} {key!r} is {number}: acknowledged {acknowledged}, "
                    f"attempted {attempted}"
                )
        counters = {(table_name, key) for table_name, key, _ in self.won}
        for table_name, key in counters:
            item = await client.table(table_name).get(key)
            newest = max(version for t, k, version in self.won if (t, k) == (table_name, key))
            # Each swap raises value and version by one.
            if item is None or item.version < newest or int(item.value) != item.version:
                violations.append(f"{table_name} {key!r} is {item}, version {newest} was won")
        return violations


class Historians:
    """Clients whose calls and answers are noted, by key.

    Args:
        chance: what they do.
        consistencies: how they read.
        pause_s: between two operations of one client.
    """

    def __init__(
        self,
        chance: random.Random,
        consistencies: tuple[Consistency, ...] = (Consistency.LEADER, Consistency.FOLLOWER),
        pause_s: float = 0.0,
    ) -> None:
        self._pause_s = pause_s
        self._chance = chance
        self._consistencies = consistencies
        self._numbers = 0
        self.history: dict[tuple[str, bytes], list[Operation]] = {}

    def work(self, table_name: str, round_number: int) -> list[Work]:
        """Return the clients of one round: new keys, so that unknown outcomes stay few."""
        keys = [b"r%d-%d" % (round_number, number) for number in range(KEYS)]

        def historian(number: int) -> Work:
            return lambda client: self._run(client.table(table_name), table_name, keys, number)

        return [historian(number) for number in range(HISTORIANS)]

    async def _run(
        self, table: AsyncTable, table_name: str, keys: list[bytes], number: int
    ) -> None:
        chance = self._chance
        versions = dict.fromkeys(keys, 0)
        is_unsure = False
        while True:
            await asyncio.sleep(self._pause_s)
            key = chance.choice(keys)
            self._numbers += 1
            value = b"%d" % self._numbers
            asked = chance.choice(
                [("put", value), ("get",), ("get",), ("cas", versions[key], value), ("delete",)]
            )
            if is_unsure:
                # Unknown writes may have happened at any time: too many, and no check would end.
                asked = ("get",)
            called_s = time.monotonic()
            try:
                answer = await self._do(table, key, asked)
            except KvUnknownOutcomeError:
                answer = UNKNOWN
            except asyncio.CancelledError:
                # The load ends: others may have seen what this call did.
                self._note(table_name, key, asked, UNKNOWN, called_s, number)
                raise
            is_unsure = answer is UNKNOWN
            self._note(table_name, key, asked, answer, called_s, number)
            if is_unsure:
                await asyncio.sleep(PAUSE_S)
            elif asked[0] == "get":
                assert answer is None or isinstance(answer, tuple)
                versions[key] = answer[1] if answer else 0

    def _note(
        self,
        table_name: str,
        key: bytes,
        asked: tuple[object, ...],
        answer: object,
        called_s: float,
        number: int,
    ) -> None:
        """Note a call; one that was to read and has no answer tells nothing."""
        is_unsure = answer is UNKNOWN
        if is_unsure and asked[0] == "get":
            return
        returned_s = LOST if is_unsure else time.monotonic()
        operation = Operation(asked, answer, called_s, returned_s, str(number))
        self.history.setdefault((table_name, key), []).append(operation)

    async def _do(self, table: AsyncTable, key: bytes, asked: tuple[object, ...]) -> object:
        match asked:
            case ("put", bytes(value)):
                return (await table.put(key, value)).version
            case ("get",):
                item = await table.get(key, self._chance.choice(self._consistencies))
                return None if item is None else (item.value, item.version)
            case ("cas", int(version), bytes(value)):
                swapped = await table.compare_and_set(key, value, version=version)
                return swapped.version if swapped.done else 0
            case _:
                return await table.delete(key)

    def judge(self) -> list[str]:
        """Return the keys whose history has no order that explains it."""
        return [
            "\n".join(
                [f"{table_name} {key!r}: these operations are not linearizable"]
                + [str(one) for one in sorted(history, key=lambda one: one.called_s)]
            )
            for (table_name, key), history in self.history.items()
            if not check(ITEM, history).linearizable
        ]

    def count(self) -> int:
        """Return how many operations were answered."""
        histories = self.history.values()
        return sum(one.output is not UNKNOWN for history in histories for one in history)


class Witnesses:
    """Clients that watch tables from the first revision on, and go on where they were."""

    def __init__(self) -> None:
        self._told: dict[str, list[Changes]] = {}

    def work(self, table_name: str) -> Work:
        """Return one who watches a table forever."""
        return lambda client: self._watch(client.table(table_name), table_name, None)

    async def _watch(self, table: AsyncTable, table_name: str, last_revision: int | None) -> None:
        """Note changes behind what is known, up to a revision."""
        told = self._told.setdefault(table_name, [])
        next_revision = told[-1].revision + 1 if told else 1
        if next_revision - 1 == last_revision:
            return
        async with aclosing(table.watch(from_revision=next_revision)) as news:
            async for changes in news:
                if changes.changes:
                    told.append(changes)
                if changes.revision == last_revision:
                    return

    async def broken(self, client: AsyncKvClient) -> list[str]:
        """Return what the watches left out, told twice, or told otherwise than it is now."""
        violations: list[str] = []
        for table_name, told in self._told.items():
            table = client.table(table_name)
            last_revision, items = -1, {}
            while (revision := (await table.info()).revision) != last_revision:
                # Changes that a broker had begun when its clients went may come yet.
                last_revision = revision
                async with asyncio.timeout(CALL_S):
                    await self._watch(table, table_name, revision)
                items = {item.key: (item.value, item.version) async for item in table.list()}
            revisions = [changes.revision for changes in told]
            if revisions != list(range(1, last_revision + 1)):
                left_out = sorted(set(range(1, last_revision + 1)).difference(revisions))
                violations.append(
                    f"{table_name} is at {last_revision}: {len(revisions)} revisions were told, "
                    f"not {left_out[:10]}"
                )
            if items != _items_of(told):
                violations.append(f"{table_name} has {items}, the watch says {_items_of(told)}")
        return violations


def _items_of(told: Sequence[Changes]) -> dict[bytes, tuple[bytes, int]]:
    """Return the items that changes make, one after the other."""
    items: dict[bytes, tuple[bytes, int]] = {}
    for changes in told:
        for kind, item in changes.changes:
            if kind is ChangeKind.PUT:
                items[item.key] = (item.value, item.version)
            else:
                items.pop(item.key, None)
    return items


@asynccontextmanager
async def running(endpoint: str, work: list[Work]) -> AsyncIterator[None]:
    """Run load while the block does, each over a connection of its own."""
    failures: list[str] = []
    tasks = Tasks("load", lambda name, failure: failures.append(f"{name}: {failure!r}"))
    for number, one in enumerate(work):
        tasks.spawn(f"client {number}", _run(endpoint, one))
    try:
        yield
    finally:
        still_running = await tasks.stop(CALL_S)
    assert (failures, still_running) == ([], [])


async def _run(endpoint: str, work: Work) -> None:
    async with AsyncKvClient(endpoint, timeout_s=CALL_S) as client:
        await work(client)
