"""Time for raft groups that need it: a tick at a fixed interval; late ticks count once (rule 14).

A sole voter that leads needs no time, so a node of idle one-voter raft groups does not wake at all
until a second replica joins, learner or not. Other raft groups may *quiesce* while store liveness
vouches for them: they are ticked again as soon as something happens to them. The ticker does not
know the effects of a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_multiraft.replica.replica import Replica
from strata_raft import Message, Role
from strata_raft.messages import AppendResponse, HeartbeatResponse
from strata_runtime.clock import Clock


def is_late_answer(message: Message, term: int) -> bool:
    """Tell whether a message is no news to a leader of this term that rests.

    Everybody it hears had everything before it came to rest, so an answer that says so comes late.
    On a node that is slow such answers would keep waking what goes to rest.
    """
    if isinstance(message, AppendResponse):
        return message.term == term and not message.rejected
    return isinstance(message, HeartbeatResponse) and message.term == term


class Ticker:
    """Knows which replicas are ticked and which are quiesced; `run` is its task.

    Args:
        clock: monotonic time.
        interval_s: one tick of the raft core.
        on_tick: lets a tick pass for all of `ticked`.
        woken: told of a replica that rested.

    Attributes:
        ticked: by raft group.
        resting: by raft group; those that would be ticked if nobody answered for them.
    """

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        on_tick: Callable[[], None],
        *,
        woken: Callable[[Replica], None],
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._on_tick = on_tick
        self._woken = woken
        self.ticked: dict[int, Replica] = {}
        self.resting: dict[int, Replica] = {}
        self._work = asyncio.Event()
        # By raft group: the configuration with which it was decided whether it is ticked.
        self._decided: dict[int, int] = {}

    def decide(self, replica: Replica) -> None:
        """Tick a replica unless time means nothing to it: it leads and is alone."""
        if replica.is_sole() and replica.role is Role.LEADER:
            self.leave(replica)
        else:
            self.follow(replica)
        self._decided[replica.raft_group] = replica.node.configuration_index

    def is_undecided(self, replica: Replica) -> bool:
        """Whether its membership has changed since: a sole replica may have new members."""
        return self._decided.get(replica.raft_group) != replica.node.configuration_index

    def follow(self, replica: Replica) -> None:
        """Tick a replica from now on."""
        if self.resting.pop(replica.raft_group, None) is not None:
            self._woken(replica)
        self.ticked[replica.raft_group] = replica
        self._work.set()

    def leave(self, replica: Replica) -> None:
        """Neither tick a replica nor remember it."""
        self._decided.pop(replica.raft_group, None)
        self.resting.pop(replica.raft_group, None)
        if self.ticked.pop(replica.raft_group, None) is not None:
            replica.quiesced()

    def quiesce(self, replica: Replica) -> None:
        """Tick a replica no more until it is woken."""
        if replica.raft_group in self.ticked:
            self.leave(replica)
            self.resting[replica.raft_group] = replica

    def sleeps_through(self, replica: Replica, message: Message) -> bool:
        """Tell whether a replica rests and a message brings it nothing."""
        return replica.raft_group in self.resting and is_late_answer(message, replica.term)

    def wake(self, replica: Replica) -> None:
        """Tick a replica again if it rests."""
        if replica.raft_group in self.resting:
            self.follow(replica)

    async def run(self) -> None:
        """Tick forever; sleep while there is nothing to tick."""
        while True:
            await self._work.wait()
            if not self.ticked:
                self._work.clear()
                continue
            due_s = self._clock.monotonic_s() + self._interval_s
            await asyncio.sleep(self._interval_s)
            if self._clock.monotonic_s() - due_s > 2 * self._interval_s:
                # The loop stood still: what lies in the sockets comes first (rule 14).
                await asyncio.sleep(self._interval_s)
            self._on_tick()
