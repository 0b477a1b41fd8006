"""Releases leases by time and after the death of clients, on all raft groups that a node leads.

The turns are short; work that waits for the log, or for messages to be read, is a task per raft
group. Invariant: a raft group that waits for its quorum, or for the tier, holds up no other (rule
39).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from strata_runtime.logs import get_logger
from strata_runtime.tasks import Tasks
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.known_brokers import KnownBrokers
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pops.dead_letters import Exhausted
from strata_storage.upkeep.instruments import Instruments

# Dead holders are looked for in every so many turns.
_TURNS_PER_RELEASE = 5
# Leases of the sets that are searched in one turn of the event loop after the loss of a broker.
_SEARCHED_PER_TURN = 2_000


class Expiry:
    """See the module docstring.

    Args:
        engines: gives the raft groups hosted now.
        brokers: which clients live, and how long this node stood still.
        tasks: owns the moves to dead-letter topics.
        instruments: count what happens.
        passed_write_ms: see `EngineOptions`.
    """

    def __init__(
        self,
        engines: Callable[[], Sequence[GroupEngine]],
        brokers: KnownBrokers,
        tasks: Tasks,
        *,
        instruments: Instruments,
        passed_write_ms: int,
    ) -> None:
        self._engines = engines
        self._brokers = brokers
        self._tasks = tasks
        self._instruments = instruments
        self._passed_write_ms = passed_write_ms
        # Leaders whose sets are just being searched.
        self._searched: set[GroupLeader] = set()
        self._logger = get_logger("storage")

    async def run(self, interval_s: float) -> None:
        """Have a turn at every interval, until cancelled."""
        for turn in itertools.count():
            await asyncio.sleep(interval_s)
            self._brokers.stalls.turn()
            for engine in self._engines():
                leader = engine.active_leader()
                if leader is None:
                    continue
                releases = turn % _TURNS_PER_RELEASE == 0
                exhausted = self._expire(engine, leader, releases=releases)
                if releases and leader.sets.lost and leader not in self._searched:
                    name = f"lost-brokers-{engine.raft_group}"
                    self._tasks.spawn(name, self._release_lost(engine, leader))
                if exhausted:
                    name = f"dead-letters-{engine.raft_group}"
                    self._tasks.spawn(name, self._move(leader, exhausted))

    async def once(self, engine: GroupEngine, leader: GroupLeader, *, releases: bool) -> None:
        """Have a turn for one raft group, and wait for what it began."""
        exhausted = self._expire(engine, leader, releases=releases)
        await self._release_lost(engine, leader)
        await self._move(leader, exhausted)

    def _expire(
        self, engine: GroupEngine, leader: GroupLeader, *, releases: bool
    ) -> list[Exhausted]:
        """Do all but move messages whose attempts are used up: return those."""
        exhausted: list[Exhausted] = []
        deadline_ms = leader.sets.next_deadline_ms()
        try:
            leader.client_names.flush()
            leader.sets.flush_kept()
            leader.sets.write_passed(self._passed_write_ms)
            if releases:
                self._instruments.released.add(leader.release(self._brokers.holders))
            if deadline_ms is not None and deadline_ms <= leader.proposer.now_ms():
                exhausted = leader.expire()
        except (Refused, StateError) as error:
            self._logger.info("expiry waits", raft_group=engine.raft_group, reason=str(error))
        trimmed, leader.sets.trimmed_leases = leader.sets.trimmed_leases, 0
        self._instruments.trimmed_leases.add(trimmed)
        filtered, leader.sets.filtered = leader.sets.filtered, 0
        self._instruments.filtered.add(filtered)
        limited, leader.sets.filter_limited = leader.sets.filter_limited, 0
        self._instruments.filter_limited.add(limited)
        return exhausted

    async def _release_lost(self, engine: GroupEngine, leader: GroupLeader) -> None:
        """Release what lost brokers took last; the event loop has other turns in between."""
        self._searched.add(leader)
        try:
            while leader.sets.lost and engine.active_leader() is leader:
                self._instruments.released.add(leader.release_lost(_SEARCHED_PER_TURN))
                await asyncio.sleep(0)
        except (Refused, StateError) as error:
            self._logger.info("expiry waits", raft_group=engine.raft_group, reason=str(error))
        finally:
            self._searched.discard(leader)

    async def _move(self, leader: GroupLeader, exhausted: Sequence[Exhausted]) -> None:
        for result in await leader.dead_letters.move_exhausted(exhausted):
            self._instruments.dead_letters.add(1, {"result": result})
            self._instruments.dead_letters_sent.add(result == "moved")
