"""Callers that wait for a membership change or a leadership transfer of one replica.

The raft core carries out both; this module starts them and notices in later steps that they are
done. One change and one transfer run at a time; a second caller is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_multiraft.base.errors import MembershipRefused, NotLeader, TransferFailed
from strata_raft import (
    ChangeMembership,
    Configuration,
    Effects,
    Event,
    EventRefused,
    RawNode,
    ReplicaProgress,
    Role,
    TransferLeadership,
)


class MembershipCalls:
    """The waiting calls of one replica.

    Args:
        node: gives the replica's raft core; it is replaced when the replica is reset.
        step: steps an event and does its effects.
    """

    __slots__ = ("_change", "_final", "_node", "_step", "_transfer")

    def __init__(self, node: Callable[[], RawNode], step: Callable[[Event], None]) -> None:
        self._node = node
        self._step = step
        self._change: asyncio.Future[None] | None = None
        self._final = Configuration(frozenset())
        self._transfer: asyncio.Future[None] | None = None

    @property
    def waits(self) -> bool:
        """Whether any caller waits."""
        return self._change is not None or self._transfer is not None

    async def change(self, voters: frozenset[int], learners: frozenset[int]) -> None:
        """See `Replica.change_membership`."""
        node = self._leading()
        wanted = Configuration(voters, learners)
        if node.configuration == wanted and node.commit_index >= node.configuration_index:
            return
        if self._change is not None:
            raise MembershipRefused("another membership change is waited for")
        self._change = asyncio.get_running_loop().create_future()
        self._final = wanted
        try:
            self._step(ChangeMembership(voters, learners))
            await self._change
        except EventRefused as refused:
            raise MembershipRefused(str(refused)) from refused
        finally:
            self._change = None

    async def transfer(self, target: int) -> None:
        """See `Replica.transfer_leadership`; the target is chosen already."""
        node = self._leading()
        if target == node.replica_id:
            return
        if self._transfer is not None:
            raise TransferFailed("the leadership is being handed over already")
        self._transfer = asyncio.get_running_loop().create_future()
        try:
            self._step(TransferLeadership(target))
            await self._transfer
        except EventRefused as refused:
            raise TransferFailed(str(refused)) from refused
        finally:
            self._transfer = None

    def observe(self, effects: Effects) -> None:
        """See what a step has decided; before the replica follows its role."""
        node = self._node()
        if (
            self._change is not None
            and not self._change.done()
            and effects.commit_index >= node.configuration_index
            and node.configuration == self._final
        ):
            self._change.set_result(None)
        if effects.role_change is not None and effects.role_change.role is not Role.LEADER:
            self.lost_leadership(effects.role_change.leader_id)

    def lost_leadership(self, leader_replica_id: int) -> None:
        """Nothing more will be decided here."""
        if self._change is not None and not self._change.done():
            self._change.set_exception(NotLeader(leader_replica_id))
        if self._transfer is not None and not self._transfer.done():
            self._transfer.set_result(None)

    def ticked(self) -> None:
        """See whether a transfer has taken too long: the core has given it up."""
        if (
            self._transfer is not None
            and not self._transfer.done()
            and not self._node().transfer_target
        ):
            self._transfer.set_exception(TransferFailed("not done within an election timeout"))

    def _leading(self) -> RawNode:
        node = self._node()
        if node.role is not Role.LEADER:
            raise NotLeader(node.leader_id)
        return node


def best_successor(
    progress: tuple[ReplicaProgress, ...],
    configuration: Configuration,
    mark_of: Callable[[int], int],
    may_lead: Callable[[int], bool],
    has_applied: Callable[[int], bool],
) -> int:
    """Return who should lead next; 0: nobody can.

    A voter that answers, with the most room on its disk (rule 11); then one that has applied nearly
    everything, since it would be silent until then (rule 1); then the most advanced one.

    Args:
        progress: of the followers.
        configuration: in force.
        mark_of: disk mark of a replica's node, 0 to 3.
        may_lead: whether a replica's node may lead, and is not known to be silent.
        has_applied: whether a replica has applied nearly everything.
    """
    fit = [
        (
            -mark_of(each.replica_id),
            has_applied(each.replica_id),
            each.match_index,
            each.replica_id,
        )
        for each in progress
        if each.recently_heard
        and each.replica_id in configuration.voters
        and may_lead(each.replica_id)
    ]
    return max(fit)[-1] if fit else 0
