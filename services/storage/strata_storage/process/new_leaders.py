"""Makes a replica that was elected on this node ready: slots, timers, leases, recent ids.

Invariant: a leader takes appends and delivers what waits only once its raft group owns its slots;
which leases there are and which ids were seen is read afterwards, while it serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_mq.commands import OwnCommand
from strata_runtime.logs import get_logger
from strata_seglog.errors import LogError
from strata_seglog.log import CommitLog
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.base.jobs import RunJob
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.group.engine import GroupEngine
from strata_storage.group.window_loader import load_window
from strata_storage.leading.leader import GroupLeader
from strata_storage.rows.machine import GroupMachine

_SEEN_LEASES_PER_TURN = 2_000
_RETRY_S = 1.0


class NewLeaders:
    """See the module docstring.

    Args:
        log: of the node; it has the recent ids.
        run_read: runs reads in a thread.
        runtime: of the node; its tasks own the leaders' timers.
        grants_of: tells what a raft group is given and does not own yet.
    """

    def __init__(
        self,
        log: CommitLog,
        run_read: RunJob,
        runtime: NodeRuntime,
        *,
        grants_of: Callable[[GroupMachine], OwnCommand | None],
    ) -> None:
        self._log = log
        self._run_read = run_read
        self._tasks = runtime.tasks
        self._options = runtime.options.engine.dedupe
        self._grants_of = grants_of
        self._logger = get_logger("storage")

    async def prepare(self, engine: GroupEngine, ready: asyncio.Event) -> None:
        """Make a raft group's leader ready, as long as it leads; set `ready` when it serves."""
        leader = engine.leader
        while leader is not None and engine.leader is leader:
            try:
                await self._own_slots(engine)
                self._make_ready(engine, leader)
                ready.set()
                seen = leader.see_leases(_SEEN_LEASES_PER_TURN)
                while not seen:
                    await asyncio.sleep(0)
                    seen = leader.see_leases(_SEEN_LEASES_PER_TURN)
                await self._load_window(engine, leader)
            except (Refused, StateError) as error:
                self._logger.info("leader waits", raft_group=engine.raft_group, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            except LogError as error:
                # Ids stay in rows, where each is looked up: slower, and right.
                self._logger.warning(
                    "ids not read", raft_group=engine.raft_group, reason=str(error)
                )
                return
            else:
                return

    def _make_ready(self, engine: GroupEngine, leader: GroupLeader) -> None:
        if not leader.ready and engine.leader is leader:
            leader.ready = True
            self._tasks.spawn(f"timers-{engine.raft_group}", leader.pending.timers.run())

    async def _own_slots(self, engine: GroupEngine) -> None:
        """Let a raft group own what the metadata gives it (rule 17).

        Raises:
            Refused: not the leader any more, or limits; to be tried again.
        """
        command = self._grants_of(engine.machine)
        if command is not None and command.slots:
            await engine.own(command)

    async def _load_window(self, engine: GroupEngine, leader: GroupLeader) -> None:
        """Read recent ids from the log; until they are there, ids are looked up in rows."""
        now_ms, last_index = leader.proposer.now_ms(), engine.machine.state.raft_index
        window = await self._run_read(
            lambda: load_window(self._log, engine.replica_id, last_index, now_ms, self._options)
        )
        leader.appends.adopt(window)
